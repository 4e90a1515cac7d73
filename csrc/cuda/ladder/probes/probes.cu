// The probes' kernels.
#include "cuda/ladder/api.h"
#include "cuda/launch.h"
#include "cuda/ptx/clock.h"
#include "cuda/ptx/ld_shared_word.h"
#include "cuda/ptx/ld_st.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::ladder {
namespace {

// The first word of kWidth bytes.
template <int kWidth>
__device__ float load(uint32_t smem) {
  if constexpr (kWidth == 4) {
    return ptx::ld_shared1_in_order(smem);
  } else if constexpr (kWidth == 8) {
    return ptx::ld_shared2_in_order(smem).x;
  } else {
    return ptx::ld_shared_in_order(smem).x;
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kPatternThreads) pattern_kernel(PatternProbe probe) {
  XGEMM_DYNAMIC_SHARED(float, words, 128);
  for (int i = static_cast<int>(threadIdx.x); i < probe.bytes / 4; i += kPatternThreads) {
    words[i] = static_cast<float>(i);
  }
  const uint32_t from =
      ptx::smem_address(words) + static_cast<uint32_t>(probe.addresses[threadIdx.x % 32]);
  float sum = 0.0f;
  __syncthreads();
  const int64_t begin = ptx::clock();
  for (int step = 0; step < probe.steps; ++step) {
    float loaded[kPatternUnrolled];
#pragma unroll
    for (float& value : loaded) value = load<kWidth>(from);
#pragma unroll
    for (const float value : loaded) sum += value;
  }
  __syncthreads();  // the slowest warp has its values
  if (threadIdx.x == 0) *probe.cycles = ptx::clock() - begin;
  probe.out[threadIdx.x] = sum;
}

// `factor` is not known to the compiler.
template <int kChains>
__global__ void fma_kernel(FmaProbe probe, float factor) {
  float sums[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) sums[i] = static_cast<float>(threadIdx.x + i);
  const int64_t begin = ptx::clock();
  for (int step = 0; step < probe.steps; ++step) {
#pragma unroll
    for (int i = 0; i < kFmasOfAStep; ++i) {
      sums[i % kChains] = sums[i % kChains] * factor + factor;
    }
  }
  if (threadIdx.x == 0) *probe.cycles = ptx::clock() - begin;
  float total = 0.0f;
#pragma unroll
  for (const float sum : sums) total += sum;
  probe.out[threadIdx.x] = total;
}

__global__ void __launch_bounds__(kStrideThreads) stride_kernel(StrideProbe probe) {
  const int64_t index = int64_t{blockIdx.x} * kStrideThreads + threadIdx.x;
  if (probe.x[index * probe.stride] == probe.sought) *probe.found = index;
}

}  // namespace

Status run_pattern(const PatternProbe& probe) {
  const auto kernel = probe.width == 4   ? pattern_kernel<4>
                      : probe.width == 8 ? pattern_kernel<8>
                                         : pattern_kernel<16>;
  const Grid grid{.blocks = 1,
                  .threads = kPatternThreads,
                  .shared_bytes = static_cast<size_t>(probe.bytes),
                  .stream = probe.stream};
  return launch_grid("ladder: the probe of a pattern", grid, kernel, probe);
}

Status run_fma(const FmaProbe& probe) {
  const Grid grid{.blocks = 1, .threads = 32, .stream = probe.stream};
  const auto kernel = probe.dependent ? fma_kernel<1> : fma_kernel<8>;
  return launch_grid("ladder: the probe of FMAs", grid, kernel, probe, 0.5f);
}

Status run_stride(const StrideProbe& probe) {
  const Grid grid{.blocks = static_cast<unsigned>(probe.loads / kStrideThreads),
                  .threads = kStrideThreads,
                  .stream = probe.stream};
  return launch_grid("ladder: the probe of strides", grid, stride_kernel, probe);
}

}  // namespace xgemm::cuda::ladder
