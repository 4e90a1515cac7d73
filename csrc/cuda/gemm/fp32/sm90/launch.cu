#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/fp32/sm90/kernel.cuh"
#include "cuda/gemm/fp32/sm90/launch.h"
#include "cuda/gemm/sm90/tensor_map.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::fp32::sm90 {
namespace {

// An operand of [rows, k], in tiles of block_rows by depth.
struct OperandShape {
  int64_t rows, k, batches, batch_stride;
  int block_rows, depth;
};

bool encode(TmaOperand* to, const OperandParams& x, const OperandShape& shape) {
  to->along_k = x.access == Access::kAlongK;
  to->batched = shape.batch_stride != 0;
  const int64_t batches = to->batched ? shape.batches : 1;
  if (to->along_k) {
    return gemm::sm90::encode_tensor_map(&to->map, x.data, DType::kF32,
                                         {.dims = 3,
                                          .extent = {shape.k, shape.rows, batches},
                                          .stride = {1, x.row_stride, shape.batch_stride},
                                          .box = {32, shape.block_rows, 1}});
  }
  return gemm::sm90::encode_tensor_map(&to->map, x.data, DType::kF32,
                                       {.dims = 3,
                                        .extent = {shape.rows, shape.k, batches},
                                        .stride = {1, x.k_stride, shape.batch_stride},
                                        .box = {shape.block_rows, shape.depth, 1},
                                        .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE});
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

template <typename Tile, bool kTransposes>
Status launch_kernel(const TmaParams& params, int ctas, cudaStream_t stream) {
  const auto kernel = gemm_kernel<Tile, kTransposes>;
  static SharedMemoryLimit limit;
  constexpr int kSmem = sizeof(SharedStorage<Tile>) + 1024;  // + alignment
  static_assert(Tile::kCtasPerSm * (kSmem + 1024) <= 228 * 1024, "the CTAs that an SM is to hold");
  const cudaError_t error = limit.raise(reinterpret_cast<const void*>(kernel), kSmem);
  if (error != cudaSuccess) return {error, "shared memory of the fp32 GEMM"};
  return launch_grid("the fp32 GEMM",
                     {.blocks = dim3(static_cast<unsigned>(ctas)),
                      .threads = dim3(Tile::kThreads),
                      .shared_bytes = kSmem,
                      .stream = stream,
                      .overlaps_previous = true},
                     kernel, params);
}

template <typename Tile>
Status launch_tile(Params p, const Config& config, void* workspace, cudaStream_t stream) {
  const int tiles = static_cast<int>(p.tiles_m * p.tiles_n * p.batches), splits = config.splits;
  set_splits(&p, 1, workspace);
  p.splits = splits;
  p.k_per_split = round_up<int64_t>(ceil_div<int64_t>(p.k, splits), Tile::kDepth);
  p.whole = whole_tiles(tiles, splits, config.ctas);
  TmaParams params{};
  params.problem = p;
  params.one = 1.0f;
  const BatchDim batch = p.batch_dims > 0 ? p.batch[0] : BatchDim{1, 0, 0, 0, 0};
  if (!encode(&params.a, p.a, {p.m, p.k, batch.size, batch.a, Tile::kBlockM, Tile::kDepth}) ||
      !encode(&params.b, p.b, {p.n, p.k, batch.size, batch.b, Tile::kBlockN, Tile::kDepth})) {
    return {cudaErrorInvalidValue, "encoding a tensor map of the fp32 GEMM"};
  }
  const int split_tiles = tiles - p.whole, ctas = p.whole + split_tiles * splits;
  const Status status = params.a.along_k || params.b.along_k
                            ? launch_kernel<Tile, true>(params, ctas, stream)
                            : launch_kernel<Tile, false>(params, ctas, stream);
  if (!status.ok() || split_tiles == 0) return status;
  return launch_parts<Tile>(p, split_tiles, stream);
}

}  // namespace

Status launch(Params params, const Config& config, void* workspace, cudaStream_t stream) {
  if (config.block_m == 128 && config.block_n == 128) {
    return launch_tile<Tile128x128>(params, config, workspace, stream);
  }
  if (config.block_m == 128) return launch_tile<Tile128x64>(params, config, workspace, stream);
  return launch_tile<Tile64x64>(params, config, workspace, stream);
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
