// The fp32 rate of one core: independent multiply-adds in registers, and nothing else. bench_cpu.py
// builds it: g++ -O2 -shared -fPIC fma_peak.cpp -o fma_peak.so
#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kChains = 10;  // latency 4 times 2 units, and some

}  // namespace

// Returns the operations done: 2 for each lane of each multiply-add.
extern "C" __attribute__((target("avx2,fma"))) double fma_avx2(int64_t steps) {
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(0.25f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 10
    for (__m256& sum : sums) asm volatile("vfmadd231ps %1, %2, %0" : "+x"(sum) : "x"(x), "x"(y));
  }
  return 2.0 * 8 * kChains * static_cast<double>(steps);
}

extern "C" __attribute__((target("avx512f"))) double fma_avx512(int64_t steps) {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  const __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 10
    for (__m512& sum : sums) asm volatile("vfmadd231ps %1, %2, %0" : "+v"(sum) : "v"(x), "v"(y));
  }
  return 2.0 * 16 * kChains * static_cast<double>(steps);
}
