// What the hardware does at the most: loops of one instruction, and a plain read. A ladder's shares
// are taken of these, measured in the same run.
#include <cuda_fp16.h>

#include "cuda/ladder/api.h"
#include "cuda/ladder/peak/stopwatch.h"
#include "cuda/launch.h"
#include "cuda/ptx/mma_sm80.h"

namespace xgemm::cuda::ladder {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 4, kSums = 8, kUnrolled = 16;

// 8 independent chains of FMAs a thread. `factor` is not known to the compiler.
__global__ void __launch_bounds__(kThreads)
    ffma_kernel(float* out, int64_t* clocks, float factor, int steps) {
  float sums[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) sums[i] = static_cast<float>(threadIdx.x + i);
  const Stopwatch watch;
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int repeat = 0; repeat < kUnrolled; ++repeat) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * factor + factor;
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) watch.add(clocks);
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kSums; ++i) total += sums[i];
  out[blockIdx.x * kThreads + threadIdx.x] = total;
}

// 8 independent chains of mma.m16n8k16 a warp, on random numbers of both signs: zeros would need
// less power, and the clock would stay higher than in a product.
__global__ void __launch_bounds__(kThreads)
    mma_kernel(float* out, int64_t* clocks, uint32_t seed, int steps) {
  uint32_t state = seed + threadIdx.x * 2654435761u, a[4], b[kSums][2];
  const auto random_pair = [&state] {
    state = state * 1664525u + 1013904223u;
    return state >> 3 & 0xbbffbbffu;  // below 1 in magnitude
  };
  for (uint32_t& x : a) x = random_pair();
#pragma unroll
  for (int i = 0; i < kSums; ++i) b[i][0] = random_pair(), b[i][1] = random_pair();
  float sums[kSums][4] = {};
  const Stopwatch watch;
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) ptx::mma_m16n8k16<__half>(sums[i], a, b[i][0], b[i][1]);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) watch.add(clocks);
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kSums; ++i) total += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
  out[blockIdx.x * kThreads + threadIdx.x] = total;
}

// 16 bytes a load, 8 under way. Nothing but a comparison is done with them.
__global__ void __launch_bounds__(kThreads)
    read_kernel(const float4* x, int64_t count, float* out, int64_t* clocks) {
  const Stopwatch watch;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  float most = 0.0f;
#pragma unroll 8
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    const float4 four = x[i];
    most = fmaxf(fmaxf(most, fmaxf(four.x, four.y)), fmaxf(four.z, four.w));
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) watch.add(clocks);
  out[blockIdx.x * kThreads + threadIdx.x] = most;
}

}  // namespace

int peak_threads(int sm_count) { return sm_count * kBlocksPerSm * kThreads; }

double peak_work(Instruction instruction, const Peak& peak) {
  const double threads = peak_threads(peak.sm_count), steps = peak.steps;
  switch (instruction) {
    case Instruction::kFfma:
      return threads * steps * kUnrolled * kSums * 2;
    case Instruction::kMma:
      return threads / 32 * steps * kSums * 2 * 16 * 8 * 16;
    case Instruction::kWgmma:
      return wgmma_peak_work(peak);
    default:
      return 4.0 * static_cast<double>(peak.count);
  }
}

Status run_peak(Instruction instruction, const Peak& peak) {
  const Grid grid{.blocks = static_cast<unsigned>(peak.sm_count * kBlocksPerSm),
                  .threads = kThreads,
                  .stream = peak.stream};
  switch (instruction) {
    case Instruction::kFfma:
      return launch_grid("ladder: the peak of FFMA", grid, ffma_kernel, peak.out, peak.clocks, 0.5f,
                         peak.steps);
    case Instruction::kMma:
      return launch_grid("ladder: the peak of mma", grid, mma_kernel, peak.out, peak.clocks, 1u,
                         peak.steps);
    case Instruction::kWgmma:
      return run_wgmma_peak(peak);
    default:
      return launch_grid("ladder: the peak of reading", grid, read_kernel,
                         reinterpret_cast<const float4*>(peak.x), peak.count / 4, peak.out,
                         peak.clocks);
  }
}

}  // namespace xgemm::cuda::ladder
