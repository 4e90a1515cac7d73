// What is said of a choice: in words, and as JSON.
#include <string>

#include "cuda/choose/choice_json.h"
#include "cuda/reduce/select.h"

namespace xgemm::cuda::reduce {
namespace {

const char* name_of(Kernel kernel) {
  constexpr const char* kNames[] = {
      "short rows",   "ragged rows",   "team rows",    "lone rows",       "row pieces",
      "rows",         "runs",          "columns",      "shifted columns", "flat columns",
      "thin columns", "short columns", "warp columns", "wrapped columns", "strided",
      "copy"};
  return kNames[static_cast<int>(kernel)];
}

std::string blocks_of(const Config& config) {
  std::string text = ", " + std::to_string(config.tiles) + " x " + std::to_string(config.pieces) +
                     " blocks of " + std::to_string(config.threads) + " threads";
  if (config.kernel != Kernel::kRows && config.kernel != Kernel::kRuns)
    text += ", " + std::to_string(config.lanes) + " lanes";
  if (config.kernel == Kernel::kShortRows || config.kernel == Kernel::kRaggedRows) {
    text += ", " + std::to_string(config.vectors) + " loads a row";
  }
  if (config.collectors > 0) text += ", " + std::to_string(config.collectors) + " to collect";
  if (config.group > 1) text += ", " + std::to_string(config.group) + " columns an output";
  if (config.cluster > 1) text += ", clusters of " + std::to_string(config.cluster);
  return text;
}

JsonObject describe(const ReduceProblem& problem, const Plan& plan, const DeviceInfo& device) {
  JsonObject json;
  return json.add("outputs", plan.outputs)
      .add("elements", plan.extent)
      .add("dtype", xgemm::name_of(problem.in_dtype))
      .add("capability", device.capability)
      .add("sm_count", device.sm_count);
}

}  // namespace

JsonObject fields_of(const Config& config) {
  JsonObject json;
  return json.add("kernel", name_of(config.kernel))
      .add("threads", config.threads)
      .add("lanes", config.lanes)
      .add("vectors", config.vectors)
      .add("tiles", config.tiles)
      .add("pieces", config.pieces)
      .add("cluster", config.cluster)
      .add("mail", config.mail)
      .add("collectors", config.collectors)
      .add("group", config.group);
}

std::string explain(const Plan& plan, const Config& config) {
  std::string text = "kernel: ";
  text += name_of(config.kernel);
  if (config.kernel != Kernel::kCopy) text += blocks_of(config);
  text += "\noutputs: " + std::to_string(plan.outputs) + " of " + std::to_string(plan.extent) +
          " elements each";
  text += std::string("\nwhy: ") + config.reason + "\n";
  return text;
}

std::string explain_json(const ReduceProblem& problem, const Plan& plan, const DeviceInfo& device,
                         bool candidates) {
  choose::Listing<Config> listing;
  const Config config = select_config(problem, plan, device, candidates ? &listing : nullptr);
  return choose::choice_json("reduce", describe(problem, plan, device), config, &listing,
                             fields_of);
}

}  // namespace xgemm::cuda::reduce
