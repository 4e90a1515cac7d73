#include <algorithm>

#include "common/current_device.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/fp32/sm90/kernel.cuh"
#include "cuda/gemm/fp32/sm90/launch.h"
#include "cuda/gemm/sm90/tensor_map.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::fp32::sm90 {
namespace {

// An operand of [rows, k], in groups of 32 rows.
struct OperandShape {
  int64_t rows, k, batches, batch_stride;
};

bool encode(TmaOperand* to, const OperandParams& x, const OperandShape& shape) {
  to->batched = shape.batch_stride != 0;
  const int64_t batches = to->batched ? shape.batches : 1;
  gemm::sm90::MapShape map{.dims = 3,
                           .extent = {shape.rows, shape.k, batches},
                           .stride = {1, x.k_stride, shape.batch_stride},
                           .box = {32, kDepth, 1}};
  if (to->along_k) {
    map.extent[0] = shape.k, map.extent[1] = shape.rows;
    map.stride[1] = x.row_stride;
  }
  return gemm::sm90::encode_tensor_map(&to->map, x.data, DType::kF32, map);
}

template <typename Tile>
Status launch_parts(const Params& p, int split_tiles, cudaStream_t stream) {
  constexpr int kBlocks = Tile::kBlockM / kReduceRows<Tile>;
  return launch_grid("the sum of an fp32 GEMM's parts",
                     {.blocks = dim3(static_cast<unsigned>(split_tiles * kBlocks)),
                      .threads = dim3(kReduceThreads),
                      .stream = stream,
                      .overlaps_previous = true},
                     reduce_kernel<Tile>, p);
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

template <typename Tile, bool kAAlongK, bool kBAlongK, bool kTma>
Status launch_kernel(const TmaParams& params, int ctas, cudaStream_t stream) {
  const auto kernel = gemm_kernel<Tile, kAAlongK, kBAlongK, kTma>;
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

template <typename Tile, bool kTma>
Status launch_layouts(const TmaParams& params, int ctas, cudaStream_t stream) {
  const bool a_along_k = params.a.along_k, b_along_k = params.b.along_k;
  const auto run = a_along_k ? (b_along_k ? launch_kernel<Tile, true, true, kTma>
                                          : launch_kernel<Tile, true, false, kTma>)
                             : (b_along_k ? launch_kernel<Tile, false, true, kTma>
                                          : launch_kernel<Tile, false, false, kTma>);
  return run(params, ctas, stream);
}

// kTma: it brings both operands.
template <typename Tile, bool kTma>
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
  if constexpr (kTma) {
    const BatchDim batch = p.batch_dims > 0 ? p.batch[0] : BatchDim{1, 0, 0, 0, 0};
    if (!encode(&params.a, p.a, {p.m, p.k, batch.size, batch.a}) ||
        !encode(&params.b, p.b, {p.n, p.k, batch.size, batch.b})) {
      return {cudaErrorInvalidValue, "encoding a tensor map of the fp32 GEMM"};
    }
  }
  const int split_tiles = tiles - p.whole, ctas = p.whole + split_tiles * splits;
  const Status status = launch_layouts<Tile, kTma>(params, ctas, stream);
  if (!status.ok() || split_tiles == 0) return status;
  return launch_parts<Tile>(p, split_tiles, stream);
}

template <bool kTma>
Status launch_config(const Params& params, const Config& config, void* workspace,
                     cudaStream_t stream) {
  const auto is = [&](const TileShape& tile) {
    return config.block_m == tile.block_m && config.block_n == tile.block_n &&
           config.stages == tile.stages;
  };
  const auto run = is(kTile64x64)    ? launch_tile<Tile<kTile64x64, kTma>, kTma>
                   : is(kTile32x128) ? launch_tile<Tile<kTile32x128, kTma>, kTma>
                   : is(kTileSliced) ? launch_tile<Tile<kTileSliced, kTma>, kTma>
                                     : launch_tile<Tile<kTileOfWarp, kTma>, kTma>;
  return run(params, config, workspace, stream);
}

}  // namespace

Status launch(const Params& params, const Config& config, void* workspace, cudaStream_t stream) {
  const bool tma = fits_tma(params, params.a, params.m, &BatchDim::a) &&
                   fits_tma(params, params.b, params.n, &BatchDim::b);
  return (tma ? launch_config<true> : launch_config<false>)(params, config, workspace, stream);
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
