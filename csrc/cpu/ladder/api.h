// The cpu ladder: one fp32 product, faster with each rung. One thread.
#pragma once

#include <cstdint>
#include <span>

namespace xgemm::cpu::ladder {

// C = A B, row-major and contiguous, of any size.
struct Product {
  const float* a;  // [m, k]
  const float* b;  // [k, n]
  float* c;        // [m, n]
  int64_t m, n, k;
};

// All rungs need AVX2, FMA and F16C: the compiler may use them in the plain loops, too.
using Rung = void (*)(const Product&);

std::span<const Rung> rungs();

// Rung 4's own interface: C = alpha op(A) op(B) + beta C, column-major, with BLAS' arguments.
void sgemm(bool transa, bool transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
           int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

// What one core does at the most, and its clock meanwhile.
struct Peak {
  double flops;  // a second, of independent FMAs in registers
  double hertz;  // by a chain of multiplications, of 3 cycles each
};

Peak measure_peak(double seconds);  // takes about as long

}  // namespace xgemm::cpu::ladder
