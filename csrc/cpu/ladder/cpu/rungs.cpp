#include "cpu/ladder/cpu/rungs.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace xgemm::cpu::ladder {

std::span<const Rung> rungs() {
  static constexpr Rung kRungs[] = {loops_mnk, loops_mkn, blocked, packed, microkernel};
  return kRungs;
}

namespace {

constexpr int kSums = 12, kSteps = 1000, kRepeats = 20;
constexpr int kCycles = 3, kChain = 20'000;  // of a 32-bit integer multiplication; a chain's length

// 12 independent chains of vector FMAs.
XGEMM_TARGET_AVX2 float multiply_registers(float x) {
  __m256 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(x);
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm256_fmadd_ps(sum, factor, factor);
  }
  __m256 total = sums[0];
  for (int i = 1; i < kSums; ++i) total = _mm256_add_ps(total, sums[i]);
  return _mm256_cvtss_f32(total);
}

// Each waits for the one before.
uint32_t multiply_chain(uint32_t x) {
#pragma GCC unroll 8
  for (int i = 0; i < kChain; ++i) x *= x;
  return x;
}

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Peak measure_peak(double seconds) {
  volatile float kept = 0.5f;  // neither known to the compiler nor unused
  volatile uint32_t chain = 3;
  double fmas = seconds, multiplications = seconds;
  const auto begin = Clock::now();
  while (seconds_since(begin) < seconds) {  // by turns: both at one clock
    const auto first = Clock::now();
    for (int i = 0; i < kRepeats; ++i) kept = multiply_registers(kept) * 0.0f + 0.5f;
    fmas = std::min(fmas, seconds_since(first));
    const auto second = Clock::now();
    chain = multiply_chain(chain);
    multiplications = std::min(multiplications, seconds_since(second));
  }
  return {.flops = double{kRepeats} * kSteps * kSums * 8 * 2 / fmas,
          .hertz = double{kChain} * kCycles / multiplications};
}

}  // namespace xgemm::cpu::ladder
