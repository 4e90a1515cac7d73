#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/fp32/sm90/kernel.cuh"
#include "cuda/gemm/fp32/sm90/launch.h"
#include "cuda/gemm/sm90/tensor_map.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::fp32::sm90 {
namespace {

bool encode(CUtensorMap* map, const OperandParams& x, int64_t rows, int64_t k, int64_t batches,
            int64_t batch_stride, int block_rows) {
  return gemm::sm90::encode_tensor_map(map, x.data, DType::kF32,
                                       {.dims = 3,
                                        .extent = {rows, k, batches},
                                        .stride = {1, x.k_stride, batch_stride},
                                        .box = {block_rows, kTmaBlockK, 1},
                                        .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE});
}

}  // namespace

Status launch(Params p, const Config& config, void* workspace, cudaStream_t stream) {
  const int tiles = static_cast<int>(p.tiles_m * p.tiles_n * p.batches), splits = config.splits;
  set_splits(&p, 1, workspace);
  p.splits = splits;
  p.k_per_split = round_up<int64_t>(ceil_div<int64_t>(p.k, splits), kTmaBlockK);
  p.whole = whole_tiles(tiles, splits, config.ctas);
  TmaParams params{};
  params.problem = p;
  const BatchDim batch = p.batch_dims > 0 ? p.batch[0] : BatchDim{1, 0, 0, 0, 0};
  params.a_batched = batch.a != 0, params.b_batched = batch.b != 0;
  if (!encode(&params.a, p.a, p.m, p.k, params.a_batched ? batch.size : 1, batch.a, kBlockM) ||
      !encode(&params.b, p.b, p.n, p.k, params.b_batched ? batch.size : 1, batch.b, kBlockN)) {
    return {cudaErrorInvalidValue, "encoding a tensor map of the fp32 GEMM"};
  }
  static SharedMemoryLimit limit;
  const auto kernel = gemm_kernel;
  const cudaError_t error =
      limit.raise(reinterpret_cast<const void*>(kernel), sizeof(SharedStorage));
  if (error != cudaSuccess) return {error, "shared memory of the fp32 GEMM"};
  const Grid grid{.blocks = dim3(static_cast<unsigned>(p.whole + (tiles - p.whole) * splits)),
                  .threads = dim3(TileTma::kThreads),
                  .shared_bytes = sizeof(SharedStorage),
                  .stream = stream};
  const Status status = launch_grid("the fp32 GEMM", grid, kernel, params);
  if (!status.ok() || p.whole == tiles) return status;
  const int blocks = (tiles - p.whole) * (kBlockM / kReduceRows);
  return launch_grid("the sum of an fp32 GEMM's parts",
                     {.blocks = dim3(static_cast<unsigned>(blocks)),
                      .threads = dim3(kReduceThreads),
                      .stream = stream},
                     reduce_kernel, p);
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
