// What is said of a choice: in words, and as JSON.
#include <sstream>

#include "cuda/choose/choice_json.h"
#include "cuda/gemm/select.h"

namespace xgemm::cuda::gemm {
namespace {

// Which kernel, and what it has of the fields.
struct ToFields {
  const GemmProblem& problem;

  // As the simt kernel would, without CTAs.
  Fields operator()(const Nothing&) const { return (*this)(simt::Config{.ctas = 0}); }
  Fields operator()(const sm90::persistent::Config& c) const {
    return {.kernel = "sm90_persistent",
            .described = "sm90 persistent (wgmma + TMA)",
            .block_m = sm90::persistent::kBlockM,
            .block_n = c.block_n,
            .stages = c.stages,
            .cluster = c.cluster,
            .splits = c.splits,
            .shifted = c.shifted,
            .swapped = c.swapped,
            .ctas = c.ctas,
            .tma_store = c.tma_store};
  }
  Fields operator()(const sm90::skinny::Config& c) const {
    return {.kernel = "sm90_skinny",
            .described = "sm90 skinny (wgmma + TMA, operands swapped, K split over a cluster)",
            .block_m = c.rows,
            .block_n = c.columns,
            .stages = c.stages,
            .cluster = c.splits,
            .splits = c.splits,
            .ctas = c.ctas};
  }
  Fields operator()(const sm90::single_tile::Config& c) const {
    return {.kernel = "sm90_single_tile",
            .described = "sm90 single-tile (wgmma + TMA, one tile for each CTA)",
            .block_m = c.tile_m,
            .block_n = c.tile_n,
            .compiled_m = c.shape->block_m,
            .compiled_n = c.shape->block_n,
            .stages = c.shape->stages,
            .cluster = c.clusters.size(),
            .splits = c.splits,
            .group = c.raster.group,
            .swapped = c.swapped,
            .ctas = c.ctas};
  }
  Fields operator()(const gemv::Config& c) const {
    return {.kernel = "gemv",
            .described = "gemv (a stream over the matrix)",
            .block_m = c.swapped ? c.shape->tile : c.shape->narrow,
            .block_n = c.swapped ? c.shape->narrow : c.shape->tile,
            .cluster = c.cluster,
            .splits = c.splits,
            .ctas = c.ctas};
  }
  Fields operator()(const sm80::Config& c) const {
    return {.kernel = "sm80",
            .described = "sm80 (mma.sync, any stride and alignment)",
            .block_m = c.block_m,
            .block_n = c.block_n,
            .stages = c.stages,
            .splits = c.splits,
            .ctas = c.ctas};
  }
  Fields operator()(const simt::Config& c) const {
    return {.kernel = "simt",
            .described = "simt (any stride and alignment)",
            .block_m = simt::kBlock,
            .block_n = simt::kBlock,
            .ctas = c.ctas};
  }
  Fields operator()(const fp32::Config& c) const {
    return {.kernel = "fp32",
            .described = "fp32 (FP32 cores, any stride and alignment)",
            .block_m = c.block_m,
            .block_n = c.block_n,
            .stages = c.stages,
            .cluster = c.cluster,
            .splits = c.splits,
            .ctas = c.ctas};
  }
  Fields operator()(const fp32::sm90::Config& c) const {
    return {.kernel = c.tf32() ? "tf32_single_tile" : "fp32_sm90",
            .described = c.tf32() ? "tf32 single-tile (mma.sync + TMA, fp32 operands)"
                                  : "fp32 sm90 (FP64 tensor cores)",
            .block_m = c.shape->block_m,
            .block_n = c.shape->block_n,
            .stages = c.shape->stages,
            .splits = c.splits,
            .ctas = c.ctas};
  }
  Fields operator()(const tf32::Config& c) const {
    return {.kernel = c.swapped ? "tf32_swapped" : "tf32",
            .described = c.swapped ? "tf32 (wgmma + TMA, fp32 operands, swapped)"
                                   : "tf32 (wgmma + TMA, fp32 operands)",
            .block_m = c.swapped ? c.tile.y : c.tile.x,
            .block_n = c.swapped ? c.tile.x : c.tile.y,
            .stages = tf32::stages(problem.precision == Precision::kTf32x3, c.tile),
            .splits = c.splits,
            .ctas = c.ctas};
  }
  Fields operator()(const tf32::sm80::Config& c) const {
    return {.kernel = "tf32_sm80",
            .described = "tf32 (mma.sync, fp32 operands, any stride and alignment)",
            .block_m = tf32::sm80::kTile,
            .block_n = tf32::sm80::kTile,
            .stages = tf32::sm80::kStages,
            .splits = c.splits,
            .ctas = c.ctas};
  }
};

JsonObject describe(const GemmProblem& p, const DeviceInfo& device) {
  const char* precisions[] = {"ieee", "tf32x3", "tf32"};
  JsonObject json;
  json.add("m", p.m).add("n", p.n).add("k", p.k).add("dtype", xgemm::name_of(p.dtype));
  if (p.dtype == DType::kF32) json.add("precision", precisions[static_cast<int>(p.precision)]);
  return json.add("a_row_stride", p.a.row_stride)
      .add("a_col_stride", p.a.col_stride)
      .add("b_row_stride", p.b.row_stride)
      .add("b_col_stride", p.b.col_stride)
      .add("capability", device.capability)
      .add("sm_count", device.sm_count);
}

}  // namespace

Fields fields_of(const GemmProblem& problem, const Choice& choice) {
  Fields fields = std::visit(ToFields{problem}, choice.config);
  fields.copy_a = choice.copies.a != align::Order::kNone;
  fields.copy_b = choice.copies.b != align::Order::kNone;
  fields.workspace_bytes = choice.workspace_bytes;
  return fields;
}

JsonObject to_json(const Fields& fields) {
  JsonObject json;
  json.add("kernel", fields.kernel).add("block_m", fields.block_m).add("block_n", fields.block_n);
  if (fields.compiled_m > 0) {
    json.add("compiled_m", fields.compiled_m).add("compiled_n", fields.compiled_n);
  }
  return json.add("stages", fields.stages)
      .add("cluster", fields.cluster)
      .add("splits", fields.splits)
      .add("group", fields.group)
      .add("shifted", fields.shifted)
      .add("swapped", fields.swapped)
      .add("ctas", fields.ctas)
      .add("tma_store", fields.tma_store)
      .add("copy_a", fields.copy_a)
      .add("copy_b", fields.copy_b)
      .add("workspace_bytes", fields.workspace_bytes);
}

std::string explain(const GemmProblem& problem, const Choice& choice) {
  const Fields fields = fields_of(problem, choice);
  std::ostringstream out;
  out << "dense GEMM on CUDA: m=" << problem.m << " n=" << problem.n << " k=" << problem.k << " "
      << xgemm::name_of(problem.dtype) << "\nkernel: " << fields.described << ", tile "
      << fields.block_m << "x" << fields.block_n;
  if (fields.compiled_m > 0) {
    out << " of at most " << fields.compiled_m << "x" << fields.compiled_n;
  }
  if (fields.stages > 0) out << ", " << fields.stages << " stages";
  if (fields.cluster > 1) out << ", clusters of " << fields.cluster;
  if (fields.splits > 1) out << ", K in " << fields.splits << " parts";
  if (fields.group > 0) out << ", tiles in groups of " << fields.group;
  if (fields.swapped) out << ", operands swapped";
  if (std::holds_alternative<sm90::persistent::Config>(choice.config)) {
    out << ", " << (fields.tma_store ? "TMA store" : "element-wise store");
  }
  out << ", " << fields.ctas << " CTAs";
  if (fields.shifted) out << ", a read shifted";
  if (fields.copy_a) out << ", a copied first";
  if (fields.copy_b) out << ", b copied first";
  if (fields.workspace_bytes > 0) out << ", workspace of " << fields.workspace_bytes << " bytes";
  out << "\nbecause: " << choice.reason << "\n";
  return out.str();
}

std::string explain_json(const GemmProblem& problem, const DeviceInfo& device, bool candidates) {
  choose::Listing<Choice> listing;
  const Choice choice = select_config(problem, device, candidates ? &listing : nullptr);
  return choose::choice_json("dense", describe(problem, device), choice, &listing,
                             [&](const Choice& c) { return to_json(fields_of(problem, c)); });
}

}  // namespace xgemm::cuda::gemm
