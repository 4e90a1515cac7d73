// What is said of a choice: in words, and as JSON.
#include <sstream>

#include "cuda/choose/choice_json.h"
#include "cuda/gemm/align/plan.h"
#include "cuda/gemm/select.h"
#include "cuda/gemm/sm90/single_tile/tile.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm {
namespace {

// For people.
const char* name_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::kSm90Persistent:
      return "sm90 persistent (wgmma + TMA)";
    case Kernel::kSm90Skinny:
      return "sm90 skinny (wgmma + TMA, operands swapped, K split over a cluster)";
    case Kernel::kSm90SingleTile:
      return "sm90 single-tile (wgmma + TMA, one tile for each CTA)";
    case Kernel::kGemv:
      return "gemv (a stream over the matrix)";
    case Kernel::kSm80:
      return "sm80 (mma.sync, any stride and alignment)";
    case Kernel::kTf32:
      return "tf32 (wgmma + TMA, fp32 operands)";
    case Kernel::kTf32Swapped:
      return "tf32 (wgmma + TMA, fp32 operands, swapped)";
    case Kernel::kTf32Sm80:
      return "tf32 (mma.sync, fp32 operands, any stride and alignment)";
    case Kernel::kFp32:
      return "fp32 (FP32 cores, any stride and alignment)";
    case Kernel::kFp32Sm90:
      return "fp32 sm90 (FP64 tensor cores)";
    case Kernel::kTf32SingleTile:
      return "tf32 single-tile (mma.sync + TMA, fp32 operands)";
    case Kernel::kSimt:
      return "simt (any stride and alignment)";
  }
  return "";
}

// For programs: the enumerator's name.
const char* tag_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::kSm90Persistent:
      return "sm90_persistent";
    case Kernel::kSm90Skinny:
      return "sm90_skinny";
    case Kernel::kSm90SingleTile:
      return "sm90_single_tile";
    case Kernel::kGemv:
      return "gemv";
    case Kernel::kSm80:
      return "sm80";
    case Kernel::kTf32:
      return "tf32";
    case Kernel::kTf32Swapped:
      return "tf32_swapped";
    case Kernel::kTf32Sm80:
      return "tf32_sm80";
    case Kernel::kFp32:
      return "fp32";
    case Kernel::kFp32Sm90:
      return "fp32_sm90";
    case Kernel::kTf32SingleTile:
      return "tf32_single_tile";
    case Kernel::kSimt:
      return "simt";
  }
  return "";
}

// The operands as the kernel gets them: a copy may be along K where the operand cannot be read so.
const sm90::single_tile::Shape& compiled_shape(const GemmProblem& p, const Config& config) {
  const align::AlignedCopy a = align::copy_of_a(p), b = align::copy_of_b(p);
  const GemmProblem copied =
      align::with_copies(p, config.copy_a ? &a : nullptr, config.copy_b ? &b : nullptr);
  const bool k_major = sm90::a_k_major(copied) && sm90::b_k_major(copied);
  return sm90::single_tile::shape_of(config.block_m, config.block_n, k_major);
}

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

JsonObject to_json(const GemmProblem& problem, const Config& config) {
  JsonObject json;
  json.add("kernel", tag_of(config.kernel))
      .add("block_m", config.block_m)
      .add("block_n", config.block_n);
  if (config.kernel == Kernel::kSm90SingleTile) {
    const sm90::single_tile::Shape& shape = compiled_shape(problem, config);
    json.add("compiled_m", shape.block_m).add("compiled_n", shape.block_n);
  }
  return json.add("stages", config.stages)
      .add("cluster", config.cluster)
      .add("splits", config.splits)
      .add("stream_k", config.stream_k)
      .add("shifted", config.shifted)
      .add("swapped", config.swapped)
      .add("ctas", config.ctas)
      .add("tma_store", config.tma_store)
      .add("copy_a", config.copy_a)
      .add("copy_b", config.copy_b)
      .add("workspace_bytes", config.workspace_bytes);
}

std::string explain(const GemmProblem& problem, const Config& config) {
  std::ostringstream out;
  out << "dense GEMM on CUDA: m=" << problem.m << " n=" << problem.n << " k=" << problem.k << " "
      << name_of(problem.dtype) << "\nkernel: " << name_of(config.kernel) << ", tile "
      << config.block_m << "x" << config.block_n;
  if (config.kernel == Kernel::kSm90SingleTile) {
    const sm90::single_tile::Shape& most = compiled_shape(problem, config);
    out << " of at most " << most.block_m << "x" << most.block_n;
  }
  if (config.stages > 0) out << ", " << config.stages << " stages";
  if (config.cluster > 1) out << ", clusters of " << config.cluster;
  if (config.splits > 1) out << ", K in " << config.splits << " parts";
  if (config.stream_k) out << ", stream-K";
  if (config.swapped) out << ", operands swapped";
  if (config.kernel == Kernel::kSm90Persistent) {
    out << ", " << (config.tma_store ? "TMA store" : "element-wise store");
  }
  out << ", " << config.ctas << " CTAs";
  if (config.shifted) out << ", a read shifted";
  if (config.copy_a) out << ", a copied first";
  if (config.copy_b) out << ", b copied first";
  if (config.workspace_bytes > 0) out << ", workspace of " << config.workspace_bytes << " bytes";
  out << "\nbecause: " << config.reason << "\n";
  return out.str();
}

std::string explain_json(const GemmProblem& problem, const DeviceInfo& device, bool candidates) {
  choose::Listing<Config> listing;
  const Config config = select_config(problem, device, candidates ? &listing : nullptr);
  return choose::choice_json("dense", describe(problem, device), config, &listing,
                             [&](const Config& c) { return to_json(problem, c); });
}

}  // namespace xgemm::cuda::gemm
