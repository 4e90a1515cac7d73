#include "cpu/ladder/cpu/rungs.h"

#include <immintrin.h>

#include <chrono>

namespace xgemm::cpu::ladder {

std::span<const Rung> rungs() {
  static constexpr Rung kRungs[] = {loops_mnk, loops_mkn, blocked, packed, microkernel};
  return kRungs;
}

namespace {

constexpr int kSums = 12, kSteps = 1000;

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

}  // namespace

double peak_flops(double seconds) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  volatile float kept = 0.5f;  // neither known to the compiler nor unused
  double least = seconds;
  const auto begin = Clock::now();
  while (Seconds(Clock::now() - begin).count() < seconds) {
    const auto start = Clock::now();
    for (int i = 0; i < 20; ++i) kept = multiply_registers(kept) * 0.0f + 0.5f;
    const double elapsed = Seconds(Clock::now() - start).count();
    if (elapsed < least) least = elapsed;
  }
  return 20.0 * kSteps * kSums * 8 * 2 / least;
}

}  // namespace xgemm::cpu::ladder
