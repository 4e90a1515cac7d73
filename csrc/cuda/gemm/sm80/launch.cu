#include <algorithm>

#include "common/math.h"
#include "cuda/gemm/sm80/epilogue.cuh"
#include "cuda/gemm/sm80/instances.h"
#include "cuda/gemm/sm80/launch.h"
#include "cuda/gemm/sm80/plan.h"
#include "cuda/launch.h"

namespace xgemm::cuda::gemm::sm80 {
namespace {

constexpr int kReduceThreads = 256;

// Sums split-K's parts in their order: the same bits in every run.
template <typename T>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_kernel(const __grid_constant__ Params params, int64_t quads) {
  const int64_t part_stride = params.batches * params.m * params.partial_stride;
  for (int64_t i = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x; i < quads;
       i += int64_t{gridDim.x} * kReduceThreads) {
    const int64_t quads_of_row = params.partial_stride / 4;
    const int64_t row_of_all = i / quads_of_row, batch = row_of_all / params.m;
    const int64_t column = (i - row_of_all * quads_of_row) * 4, row = row_of_all - batch * params.m;
    const float* source = params.partials + i * 4;
    float sum[4] = {};
#pragma unroll 4
    for (int split = 0; split < params.splits; ++split) {
      const float4 part = *reinterpret_cast<const float4*>(source + split * part_stride);
      sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
    }
    T* d = static_cast<T*>(params.d) +
           batch_offset(params, static_cast<uint32_t>(batch), &BatchDim::d);
    finish_row4<T>(params, d, sum, row, column);
  }
}

Status reduce(const Params& params, DType dtype, cudaStream_t stream) {
  const int64_t quads = params.batches * params.m * (params.partial_stride / 4);
  const int64_t most = 1 << 16;
  const auto blocks =
      static_cast<unsigned>(std::min(ceil_div<int64_t>(quads, kReduceThreads), most));
  const auto kernel = dtype == DType::kF16 ? reduce_kernel<__half> : reduce_kernel<__nv_bfloat16>;
  const Grid grid{.blocks = dim3(blocks), .threads = dim3(kReduceThreads), .stream = stream};
  return launch_grid("split-K's sum in the sm_80 GEMM", grid, kernel, params, quads);
}

const void* shifted(const void* data, int64_t elements) {
  return static_cast<const char*>(data) + elements * 2;
}

// The two halves of a problem's largest batch dimension, one after the other.
Status launch_halves(const Problem& problem, const Config& config, void* workspace,
                     cudaStream_t stream) {
  const auto* const end = problem.batch + problem.batch_dims;
  const auto largest = std::max_element(
      problem.batch, end, [](const BatchDim& x, const BatchDim& y) { return x.size < y.size; });
  Problem first = problem, second = problem;
  const auto at = largest - problem.batch;
  const int64_t half = largest->size / 2;
  first.batch[at].size = half;
  second.batch[at].size -= half;
  second.a.data = shifted(problem.a.data, half * largest->a);
  second.b.data = shifted(problem.b.data, half * largest->b);
  second.d = const_cast<void*>(shifted(problem.d, half * largest->d));
  const Status status = sm80::launch(first, config, workspace, stream);
  return status.ok() ? sm80::launch(second, config, workspace, stream) : status;
}

}  // namespace

Status launch(const Problem& problem, const Config& config, void* workspace, cudaStream_t stream) {
  Params params = make_params(problem);
  params.splits = config.splits;
  params.k_per_split = round_up<int64_t>(ceil_div<int64_t>(params.k, config.splits), kBlockK);
  params.partials = static_cast<float*>(workspace);
  const int64_t tiles_m = ceil_div<int64_t>(params.m, config.block_m);
  const int64_t tiles_n = ceil_div<int64_t>(params.n, config.block_n);
  const int64_t tiles = tiles_m * tiles_n * params.batches * params.splits;
  if (tiles >= kMostTiles && params.batches > 1) {
    return launch_halves(problem, config, workspace, stream);
  }
  params.tiles_m = static_cast<uint32_t>(tiles_m);
  params.tiles_n = static_cast<uint32_t>(tiles_n);
  params.tiles = static_cast<uint32_t>(tiles);
  const auto run = problem.dtype == DType::kF16 ? launch_f16 : launch_bf16;
  Config of_tiles = config;
  of_tiles.ctas = static_cast<int>(std::min<int64_t>(config.ctas, tiles));  // each has a tile
  const Status status = run(params, of_tiles, stream);
  if (!status.ok() || params.splits == 1) return status;
  return reduce(params, problem.dtype, stream);
}

}  // namespace xgemm::cuda::gemm::sm80
