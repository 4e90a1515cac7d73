#include "cuda/gemm/fp32/gemv.cuh"
#include "cuda/gemm/fp32/kernel.cuh"
#include "cuda/gemm/fp32/launch.h"
#include "cuda/gemm/fp32/parts.cuh"
#include "cuda/gemm/fp32/sm90/launch.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::fp32 {
namespace {

constexpr int64_t kMaxCtas = INT32_MAX;  // of a launch

template <int kGroups>
__global__ void __launch_bounds__(kPartsThreads)
    reduce_kernel(const __grid_constant__ Params params, int64_t quads) {
  const PartsOfQuad<kGroups> mine;
  const int64_t i = int64_t{blockIdx.x} * mine.kQuads + mine.quad;
  const bool inside = i < quads;
  const int64_t stride = params.batches * params.m * params.partial_stride;
  const float4 sum =
      mine.sum_of_groups(mine.sum(params.partials + i * 4, stride, inside ? params.splits : 0));
  if (mine.group > 0 || !inside) return;
  const int64_t quads_of_row = params.partial_stride / 4;
  const int64_t row_of_all = i / quads_of_row, column = i % quads_of_row * 4;
  finish_row4_inline(params, row_of_all / params.m, sum, row_of_all % params.m, column);
}

using Kernel = void (*)(Params);

// One CTA for each tile of each part of K.
Status launch_ctas(Params params, Kernel kernel, int threads, int shared_bytes,
                   cudaStream_t stream) {
  const int64_t all = params.tiles_m * params.tiles_n * params.batches * params.splits;
  for (; params.first_work < all; params.first_work += kMaxCtas) {
    const int64_t ctas = min(all - params.first_work, kMaxCtas);
    const Grid grid{.blocks = dim3(static_cast<unsigned>(ctas)),
                    .threads = dim3(threads),
                    .shared_bytes = static_cast<size_t>(shared_bytes),
                    .stream = stream};
    const Status status = launch_grid("the fp32 GEMM", grid, kernel, params);
    if (!status.ok()) return status;
  }
  return {};
}

template <typename Tile, bool kChunks>
Status launch_tile(const Params& params, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(SharedStorage<Tile>);
  const auto kernel = gemm_kernel<Tile, kChunks>;
  if constexpr (kSmemBytes > 48 * 1024) {
    static SharedMemoryLimit limit;
    const cudaError_t error = limit.raise(reinterpret_cast<const void*>(kernel), kSmemBytes);
    if (error != cudaSuccess) return {error, "shared memory of the fp32 GEMM"};
  }
  return launch_ctas(params, kernel, Tile::kThreads, kSmemBytes, stream);
}

template <int kRows>
Status launch_gemv(Params params, const Config& config, cudaStream_t stream) {
  params.gemv_columns = config.block_n;
  const Kernel kernel = find_gemv<kRows, false>(params, config.block_n);
  const GemvCut cut = gemv_cut(params, config.block_n, params.k_per_split, params.splits);
  return launch_ctas(params, kernel, cut.warps * 32, 0, stream);
}

Status launch_config(const Params& params, const Config& config, cudaStream_t stream) {
  if (config.block_m == 1) return launch_gemv<1>(params, config, stream);
  if (config.block_m == 2) return launch_gemv<2>(params, config, stream);
  if (config.block_m == 4) return launch_gemv<4>(params, config, stream);
  const bool chunks = params.a.access == Access::kRows16 && params.b.access == Access::kRows16;
  const auto run = config.block_m == 128
                       ? (chunks ? launch_tile<TileLarge, true> : launch_tile<TileLarge, false>)
                   : config.block_m == 64 ? launch_tile<TileSmall, false>
                                          : launch_tile<TileFlat, false>;
  return run(params, stream);
}

}  // namespace

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream) {
  Params params = make_tile_params(problem, config.block_m, config.block_n);
  set_splits(&params, config.splits, workspace);
  if (config.cluster > 1) return sm90::launch_gemv(params, config, stream);
  const Status status = launch_config(params, config, stream);
  if (!status.ok() || params.splits == 1) return status;
  return reduce(params, stream);
}

Status reduce(const Params& params, cudaStream_t stream) {
  const int64_t quads = params.batches * params.m * (params.partial_stride / 4);
  const bool shared = shares_parts(params.splits, quads);
  const int quads_of_block = kPartsThreads / (shared ? kPartsGroups : 1);
  const int64_t blocks = ceil_div<int64_t>(quads, quads_of_block);
  const Grid grid{.blocks = dim3(static_cast<unsigned>(blocks)),
                  .threads = dim3(kPartsThreads),
                  .stream = stream};
  return launch_grid("split-K's sum of fp32 products", grid,
                     shared ? reduce_kernel<kPartsGroups> : reduce_kernel<1>, params, quads);
}

}  // namespace xgemm::cuda::gemm::fp32
