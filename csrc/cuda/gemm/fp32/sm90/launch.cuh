// A launch of a tile of the kernels that TMA feeds, in either precision.
#pragma once

#include <algorithm>

#include "common/current_device.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/fp32/sm90/kernel.cuh"
#include "cuda/gemm/fp32/sm90/launch.h"
#include "cuda/gemm/sm90/tensor_map.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

// Whether TMA brings both operands.
inline bool tma_reads(const Params& params) {
  return fits_tma(params, params.a, params.m, &BatchDim::a) &&
         fits_tma(params, params.b, params.n, &BatchDim::b);
}

// An operand of [rows, k], in groups of 32 rows.
struct OperandShape {
  int64_t rows, k, batches, batch_stride;
};

inline bool encode(TmaOperand* to, const OperandParams& x, const OperandShape& shape,
                   bool round_to_tf32) {
  to->batched = shape.batch_stride != 0;
  const int64_t batches = to->batched ? shape.batches : 1;
  gemm::sm90::MapShape map{.dims = 3,
                           .extent = {shape.rows, shape.k, batches},
                           .stride = {1, x.k_stride, shape.batch_stride},
                           .box = {32, kDepth, 1},
                           .round_to_tf32 = round_to_tf32};
  if (to->along_k) {
    map.extent[0] = shape.k, map.extent[1] = shape.rows;
    map.stride[1] = x.row_stride;
  }
  return gemm::sm90::encode_tensor_map(&to->map, x.data, DType::kF32, map);
}

// An SM that has room gets several CTAs at once, while others idle where there are few: then each
// asks for so much shared memory that they are spread evenly.
template <typename Tile>
int shared_bytes(int ctas) {
  constexpr int kSmem = sizeof(SharedStorage<Tile>) + 1024;  // + alignment
  constexpr int kOfSm = 228 * 1024, kOfSystem = 1024;        // of each CTA
  static_assert(Tile::kCtasPerSm * (kSmem + kOfSystem) <= kOfSm, "the CTAs that an SM is to hold");
  const int per_sm = ceil_div(ctas, std::max(current_device().sm_count, 1));
  return per_sm >= Tile::kCtasPerSm ? kSmem : std::max(kSmem, kOfSm / (per_sm + 1));
}

template <typename Tile, bool kAAlongK, bool kBAlongK>
Status launch_kernel(const TmaParams& params, int ctas, cudaStream_t stream) {
  const auto kernel = gemm_kernel<Tile, kAAlongK, kBAlongK>;
  static SharedMemoryLimit limit;
  const int shared = shared_bytes<Tile>(ctas);
  const cudaError_t error =
      limit.raise(reinterpret_cast<const void*>(kernel), shared_bytes<Tile>(1));
  if (error != cudaSuccess) return {error, "shared memory of the fp32 GEMM"};
  return launch_grid("the fp32 GEMM",
                     {.blocks = dim3(static_cast<unsigned>(ctas)),
                      .threads = dim3(Tile::kThreads),
                      .shared_bytes = static_cast<size_t>(shared),
                      .stream = stream,
                      .overlaps_previous = true},
                     kernel, params);
}

template <typename Tile>
Status launch_layouts(const TmaParams& params, int ctas, cudaStream_t stream) {
  const bool a_along_k = params.a.along_k, b_along_k = params.b.along_k;
  const auto run =
      a_along_k
          ? (b_along_k ? launch_kernel<Tile, true, true> : launch_kernel<Tile, true, false>)
          : (b_along_k ? launch_kernel<Tile, false, true> : launch_kernel<Tile, false, false>);
  return run(params, ctas, stream);
}

template <typename Tile>
Status launch_tile(Params p, const Config& config, void* workspace, cudaStream_t stream) {
  const int tiles = static_cast<int>(p.tiles_m * p.tiles_n * p.batches), splits = config.splits;
  set_splits(&p, 1, workspace);
  p.splits = splits;
  p.k_per_split = round_up<int64_t>(ceil_div<int64_t>(p.k, splits), Tile::kStageDepth);
  p.whole = whole_tiles(tiles, splits, config.ctas);
  TmaParams params{};
  params.problem = p;
  params.a.along_k = p.a.access == Access::kAlongK;
  params.b.along_k = p.b.access == Access::kAlongK;
  if constexpr (Tile::kTma) {
    constexpr bool kRound = Tile::kPrecision == Precision::kTf32;
    const BatchDim batch = p.batch_dims > 0 ? p.batch[0] : BatchDim{1, 0, 0, 0, 0};
    if (!encode(&params.a, p.a, {p.m, p.k, batch.size, batch.a}, kRound) ||
        !encode(&params.b, p.b, {p.n, p.k, batch.size, batch.b}, kRound)) {
      return {cudaErrorInvalidValue, "encoding a tensor map of the fp32 GEMM"};
    }
  }
  const int split_tiles = tiles - p.whole, ctas = p.whole + split_tiles * splits;
  const Status status = launch_layouts<Tile>(params, ctas, stream);
  if (!status.ok() || split_tiles == 0) return status;
  return launch_parts(p, Tile::kShape, split_tiles, stream);
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
