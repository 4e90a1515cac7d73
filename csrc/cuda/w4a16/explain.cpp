// What is said of a choice: in words, and as JSON.
#include <iterator>
#include <sstream>

#include "common/math.h"
#include "cuda/choose/choice_json.h"
#include "cuda/w4a16/select.h"

namespace xgemm::cuda::w4a16 {
namespace {

struct ToFields {
  const Problem& problem;

  Fields operator()(const Nothing&) const { return {}; }
  Fields operator()(const sm80::Config& c) const {
    return {.kernel = "sm80",
            .block_m = c.block_m,
            .block_n = c.block_n,
            .warps = c.warps,
            .stages = c.stages,
            .splits = c.splits,
            .ctas = c.ctas,
            .copy_x = c.copy_x};
  }
  Fields operator()(const sm90::skinny::Config& c) const {
    return {.kernel = "sm90_skinny",
            .block_m = c.split.rows,
            .block_n = c.split.strips * static_cast<int>(w4::kStripColumns),
            .warps = c.split.warps,
            .stages = c.split.stages,
            .cluster = c.split.cluster,
            .ctas = c.clusters * c.split.cluster};
  }
  Fields operator()(const sm90::register_resident::Plan& plan) const {
    return {.kernel = "sm90_register_resident",
            .block_m = 1,
            .block_n = static_cast<int>(w4::kStripColumns),
            .warps = plan.warps,
            .stages = 1,
            .ctas = ceil_div<int64_t>(problem.weight.layout.n, w4::kStripColumns)};
  }
  Fields operator()(const sm90::wgmma::Config& c) const {
    constexpr int kWarpsOfWarpgroup = sm90::wgmma::kWarpgroup / 32;
    return {.kernel = "sm90_wgmma",
            .block_m = c.rows,
            .block_n = c.columns(),
            .warps = (c.consumers * c.parts + 1) * kWarpsOfWarpgroup,
            .cluster = c.cluster(),
            .splits = c.splits,
            .ctas = c.ctas(),
            .stream_k = c.stream_k,
            .copy_x = c.copy_x};
  }
};

// For people.
const char* described(const Choice& choice) {
  constexpr const char* kDescribed[] = {
      "none", "sm80 (cp.async, mma.sync; any format, stride and alignment)",
      "sm90 skinny (bulk copies + mma.sync, K split over warps and a cluster)",
      "sm90 register-resident (all of a small weight in registers, mma.sync)",
      "sm90 wgmma (the weight dequantized in registers)"};
  static_assert(std::size(kDescribed) == std::variant_size_v<decltype(choice.config)>);
  return kDescribed[choice.config.index()];
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

Fields fields_of(const Problem& problem, const Choice& choice) {
  Fields fields = std::visit(ToFields{problem}, choice.config);
  fields.workspace_bytes = choice.workspace_bytes;
  return fields;
}

JsonObject to_json(const Fields& fields) {
  JsonObject json;
  return json.add("kernel", fields.kernel)
      .add("block_m", fields.block_m)
      .add("block_n", fields.block_n)
      .add("warps", fields.warps)
      .add("stages", fields.stages)
      .add("cluster", fields.cluster)
      .add("splits", fields.splits)
      .add("ctas", fields.ctas)
      .add("stream_k", fields.stream_k)
      .add("copy_x", fields.copy_x)
      .add("workspace_bytes", fields.workspace_bytes);
}

std::string explain(const Problem& p, const Choice& choice) {
  const w4::Layout& layout = p.weight.layout;
  const Fields fields = fields_of(p, choice);
  std::ostringstream out;
  out << "W4A16 on CUDA: m=" << p.m << " n=" << layout.n << " k=" << layout.k << " "
      << xgemm::name_of(p.dtype) << ", group_size=" << layout.group_size
      << (layout.zeros ? ", zeros" : "") << "\nkernel: " << described(choice) << ", tile "
      << fields.block_m << "x" << fields.block_n << ", " << fields.warps << " warps, "
      << fields.stages << " stages";
  if (fields.cluster > 1) out << ", clusters of " << fields.cluster;
  if (fields.splits > 1) out << ", K in " << fields.splits << " parts";
  out << ", " << fields.ctas << " CTAs";
  if (fields.stream_k) out << ", stream-K";
  if (fields.copy_x) out << ", x copied first";
  if (fields.workspace_bytes > 0) out << ", workspace of " << fields.workspace_bytes << " bytes";
  out << "\nbecause: " << choice.reason << "\n";
  return out.str();
}

std::string explain_json(const Problem& problem, const DeviceInfo& device, bool candidates) {
  choose::Listing<Choice> listing;
  const auto choice = select_config(problem, device, candidates ? &listing : nullptr);
  if (!choice) return "";
  return choose::choice_json("w4a16", describe(problem, device), *choice, &listing,
                             [&](const Choice& c) { return to_json(fields_of(problem, c)); });
}

}  // namespace xgemm::cuda::w4a16
