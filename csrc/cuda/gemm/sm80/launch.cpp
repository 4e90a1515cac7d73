#include "cuda/gemm/sm80/launch.h"

#include <algorithm>

#include "common/math.h"
#include "cuda/gemm/sm80/instances.h"
#include "cuda/gemm/sm80/plan.h"

namespace xgemm::cuda::gemm::sm80 {
namespace {

const void* shifted(const void* data, int64_t elements) {
  return static_cast<const char*>(data) + elements * 2;
}

// The two halves of a problem's largest batch dimension, one after the other.
Status launch_halves(const GemmProblem& problem, const Config& config, void* workspace,
                     cudaStream_t stream) {
  const auto* const end = problem.batch + problem.batch_dims;
  const auto largest = std::max_element(
      problem.batch, end, [](const BatchDim& x, const BatchDim& y) { return x.size < y.size; });
  GemmProblem first = problem, second = problem;
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

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream) {
  Params params = make_params(problem);
  params.splits = config.splits;
  params.k_per_split = round_up<int64_t>(ceil_div<int64_t>(params.k, config.splits), kBlockK);
  params.partials = static_cast<float*>(workspace);
  const int64_t tiles_m = ceil_div<int64_t>(params.m, config.block_m);
  const int64_t tiles_n = ceil_div<int64_t>(params.n, config.block_n);
  const int64_t tiles = tiles_m * tiles_n * params.batches * params.splits;
  if (tiles >= kMaxTiles && params.batches > 1) {
    return launch_halves(problem, config, workspace, stream);
  }
  params.tiles_m = static_cast<uint32_t>(tiles_m);
  params.tiles_n = static_cast<uint32_t>(tiles_n);
  params.tiles = static_cast<uint32_t>(tiles);
  const auto run = problem.dtype == DType::kF16 ? launch_f16 : launch_bf16;
  Config of_tiles = config;
  of_tiles.ctas = static_cast<int>(std::min<int64_t>(config.ctas, tiles));  // each has a tile
  return run(params, of_tiles, stream);
}

}  // namespace xgemm::cuda::gemm::sm80
