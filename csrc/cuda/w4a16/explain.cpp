// What is said of a choice: in words, and as JSON.
#include <sstream>

#include "cuda/choice_json.h"
#include "cuda/w4a16/select.h"

namespace xgemm::cuda::w4a16 {
namespace {

// For people.
const char* name_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::kSm80:
      return "sm80 (cp.async, mma.sync; any format, stride and alignment)";
    case Kernel::kSm90Skinny:
      return "sm90 skinny (bulk copies + mma.sync, K split over warps and a cluster)";
    case Kernel::kSm90RegisterResident:
      return "sm90 register-resident (all of a small weight in registers, mma.sync)";
    case Kernel::kSm90Wgmma:
      return "sm90 wgmma (the weight dequantized in registers)";
  }
  return "";
}

// For programs: the enumerator's name.
const char* tag_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::kSm80:
      return "sm80";
    case Kernel::kSm90Skinny:
      return "sm90_skinny";
    case Kernel::kSm90RegisterResident:
      return "sm90_register_resident";
    case Kernel::kSm90Wgmma:
      return "sm90_wgmma";
  }
  return "";
}

JsonObject fields_of(const Config& config) {
  JsonObject json;
  return json.add("kernel", tag_of(config.kernel))
      .add("block_m", config.block_m)
      .add("block_n", config.block_n)
      .add("warps", config.warps)
      .add("stages", config.stages)
      .add("cluster", config.cluster)
      .add("splits", config.splits)
      .add("ctas", config.ctas)
      .add("stream_k", config.stream_k)
      .add("copy_x", config.copy_x)
      .add("workspace_bytes", config.workspace_bytes);
}

JsonObject describe(const Problem& p, const DeviceInfo& device) {
  const w4::Layout& layout = p.weight.layout;
  JsonObject json;
  return json.add("m", p.m)
      .add("n", layout.n)
      .add("k", layout.k)
      .add("dtype", xgemm::name_of(p.dtype))
      .add("group_size", layout.group_size)
      .add("zeros", layout.zeros)
      .add("bf16_scales", p.weight.bf16_scales)
      .add("perm", p.perm != nullptr)
      .add("batch_invariant", p.batch_invariant)
      .add("capability", device.capability)
      .add("sm_count", device.sm_count);
}

}  // namespace

std::string explain(const Problem& p, const Config& config) {
  const w4::Layout& layout = p.weight.layout;
  std::ostringstream out;
  out << "W4A16 on CUDA: m=" << p.m << " n=" << layout.n << " k=" << layout.k << " "
      << xgemm::name_of(p.dtype) << ", group_size=" << layout.group_size
      << (layout.zeros ? ", zeros" : "") << "\nkernel: " << name_of(config.kernel) << ", tile "
      << config.block_m << "x" << config.block_n << ", " << config.warps << " warps, "
      << config.stages << " stages";
  if (config.cluster > 1) out << ", clusters of " << config.cluster;
  if (config.splits > 1) out << ", K in " << config.splits << " parts";
  out << ", " << config.ctas << " CTAs";
  if (config.stream_k) out << ", stream-K";
  if (config.copy_x) out << ", x copied first";
  if (config.workspace_bytes > 0) out << ", workspace of " << config.workspace_bytes << " bytes";
  out << "\nbecause: " << config.reason << "\n";
  return out.str();
}

std::string explain_json(const Problem& problem, const DeviceInfo& device, bool candidates) {
  const auto choose = [&] { return select_config(problem, device); };
  return choice_json<Config>("w4a16", describe(problem, device), candidates, choose, fields_of);
}

}  // namespace xgemm::cuda::w4a16
