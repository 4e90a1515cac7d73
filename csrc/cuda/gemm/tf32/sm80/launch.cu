#include "cuda/gemm/tf32/sm80/kernel.cuh"
#include "cuda/gemm/tf32/sm80/launch.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::tf32::sm80 {
namespace {

constexpr int64_t kMaxCtas = INT32_MAX;  // of a launch

template <bool kThree>
Status launch_kernel(fp32::Params params, cudaStream_t stream) {
  constexpr int kSmem = sizeof(SharedStorage);
  const auto kernel = gemm_kernel<kThree>;
  static SharedMemoryLimit limit;
  const cudaError_t set = limit.raise(reinterpret_cast<const void*>(kernel), kSmem);
  if (set != cudaSuccess) return {set, "shared memory of the TF32 mma.sync GEMM"};
  const int64_t all = params.tiles_m * params.tiles_n * params.batches * params.splits;
  for (; params.first_work < all; params.first_work += kMaxCtas) {
    const int64_t ctas = min(all - params.first_work, kMaxCtas);
    const Grid grid{.blocks = dim3(static_cast<unsigned>(ctas)),
                    .threads = dim3(Tile::kThreads),
                    .shared_bytes = kSmem,
                    .stream = stream};
    const Status status = launch_grid("the TF32 mma.sync GEMM", grid, kernel, params);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Status launch(fp32::Params params, Precision precision, cudaStream_t stream) {
  params.tiles_m = ceil_div<int64_t>(params.m, Tile::kBlockM);
  params.tiles_n = ceil_div<int64_t>(params.n, Tile::kBlockN);
  const bool three = precision == Precision::kTf32x3;
  return three ? launch_kernel<true>(params, stream) : launch_kernel<false>(params, stream);
}

}  // namespace xgemm::cuda::gemm::tf32::sm80
