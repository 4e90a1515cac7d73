// What wgmma does at the most: m64n256k16 on the same two tiles of shared memory, again and again.
#include <cuda_bf16.h>

#include "cuda/ladder/api.h"
#include "cuda/ladder/peak/stopwatch.h"
#include "cuda/launch.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::ladder {
namespace {

constexpr int kWarpgroup = 128, kThreads = 2 * kWarpgroup, kRepeats = 4, kN = 256;

struct Tiles {
  alignas(1024) __nv_bfloat16 a[128 * 64], b[kN * 64];
};

// Random numbers of both signs below 1: zeros would need less power, and the clock would stay
// higher than in a product.
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_kernel(float* out, int64_t* clocks, int steps) {
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 16);
  auto& tiles = *reinterpret_cast<Tiles*>(raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  auto* pairs = reinterpret_cast<uint32_t*>(&tiles);
  uint32_t state = threadIdx.x * 2654435761u + 1;
  for (unsigned i = threadIdx.x; i < sizeof(Tiles) / 4; i += kThreads) {
    state = state * 1664525u + 1013904223u;
    pairs[i] = state >> 3 & 0xbf7fbf7fu;
  }
  ptx::fence_proxy_async();
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const uint64_t a = ptx::wgmma_descriptor(tiles.a + warpgroup * 64 * 64, 16, 1024);
  const uint64_t b = ptx::wgmma_descriptor(tiles.b, 16, 1024);
  float sums[kN / 2] = {};
  const Stopwatch watch;
  for (int step = 0; step < steps; ++step) {
    ptx::wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < kRepeats; ++k16) {  // 32 bytes further each
      ptx::wgmma<__nv_bfloat16, 0, 0>(sums, a + k16 * 2, b + k16 * 2, 1);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) watch.add(clocks);
  float total = 0.0f;
#pragma unroll
  for (float sum : sums) total += sum;
  out[blockIdx.x * kThreads + threadIdx.x] = total;
}

}  // namespace

double wgmma_peak_work(const Peak& peak) {
  return 2.0 * peak.sm_count * (kThreads / kWarpgroup) * peak.steps * kRepeats * 64 * kN * 16;
}

Status run_wgmma_peak(const Peak& peak) {
  constexpr int kSmemBytes = sizeof(Tiles) + 1024;
  const cudaError_t raised =
      cudaFuncSetAttribute(reinterpret_cast<const void*>(wgmma_kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes);
  if (raised != cudaSuccess) return {raised, "ladder: the peak of wgmma"};
  const Grid grid{.blocks = static_cast<unsigned>(peak.sm_count),
                  .threads = kThreads,
                  .shared_bytes = kSmemBytes,
                  .stream = peak.stream};
  return launch_grid("ladder: the peak of wgmma", grid, wgmma_kernel, peak.out, peak.clocks,
                     peak.steps);
}

}  // namespace xgemm::cuda::ladder
