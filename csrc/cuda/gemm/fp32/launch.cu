#include <algorithm>

#include "cuda/gemm/fp32/kernel.cuh"
#include "cuda/gemm/fp32/launch.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::fp32 {
namespace {

constexpr int kReduceThreads = 256;
constexpr int64_t kMostCtas = INT32_MAX;  // of a launch

// Sums split-K's parts in their order: the same bits in every run.
__global__ void __launch_bounds__(kReduceThreads)
    reduce_kernel(const __grid_constant__ Params params, int64_t quads) {
  const int64_t quads_of_row = params.partial_stride / 4;
  for (int64_t i = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x; i < quads;
       i += int64_t{gridDim.x} * kReduceThreads) {
    const int64_t row_of_all = i / quads_of_row, column = i % quads_of_row * 4;
    const int64_t batch = row_of_all / params.m, row = row_of_all % params.m;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int split = 0; split < params.splits; ++split) {
      const float4 part = *partial_row4(params, split * params.batches + batch, row, column);
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    finish_row4(params, batch, sum, row, column);
  }
}

template <typename Tile>
Status launch_tile(Params params, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(SharedStorage<Tile>);
  const auto kernel = gemm_kernel<Tile>;
  if constexpr (kSmemBytes > 48 * 1024) {
    static SharedMemoryLimit limit;
    const cudaError_t error = limit.raise(reinterpret_cast<const void*>(kernel), kSmemBytes);
    if (error != cudaSuccess) return {error, "shared memory of the fp32 GEMM"};
  }
  const int64_t all = params.tiles_m * params.tiles_n * params.batches * params.splits;
  for (; params.first_work < all; params.first_work += kMostCtas) {
    const int64_t ctas = std::min<int64_t>(all - params.first_work, kMostCtas);
    const Grid grid{.blocks = dim3(static_cast<unsigned>(ctas)),
                    .threads = dim3(Tile::kThreads),
                    .shared_bytes = kSmemBytes,
                    .stream = stream};
    const Status status = launch_grid("the fp32 GEMM", grid, kernel, params);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Status launch(const Problem& problem, const Config& config, void* workspace, cudaStream_t stream) {
  Params params = make_params(problem);
  params.splits = config.splits;
  params.k_per_split = round_up<int64_t>(ceil_div<int64_t>(params.k, config.splits), kBlockK);
  params.partials = static_cast<float*>(workspace);
  params.tiles_m = ceil_div<int64_t>(params.m, config.block_m);
  params.tiles_n = ceil_div<int64_t>(params.n, config.block_n);
  const auto run = config.block_m == 128  ? launch_tile<TileLarge>
                   : config.block_m == 64 ? launch_tile<TileSmall>
                                          : launch_tile<TileFlat>;
  const Status status = run(params, stream);
  if (!status.ok() || params.splits == 1) return status;
  return reduce(params, stream);
}

Status reduce(const Params& params, cudaStream_t stream) {
  const int64_t quads = params.batches * params.m * (params.partial_stride / 4);
  const int64_t blocks =
      std::min<int64_t>(ceil_div<int64_t>(quads, kReduceThreads), int64_t{1} << 16);
  const Grid grid{.blocks = dim3(static_cast<unsigned>(blocks)),
                  .threads = dim3(kReduceThreads),
                  .stream = stream};
  return launch_grid("split-K's sum of fp32 products", grid, reduce_kernel, params, quads);
}

}  // namespace xgemm::cuda::gemm::fp32
