// An fp32 number as a sum of two TF32 numbers.
#pragma once

namespace xgemm::cuda::gemm::tf32 {

// The nearest TF32 number, ties away from zero. Beyond the largest one it is infinite; of a NaN it
// may be anything, as x - big is NaN then.
__device__ inline float round_to_tf32(float x) {
  return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}

// The same, but a NaN stays one.
__device__ inline float round_or_nan(float x) { return x != x ? x : round_to_tf32(x); }

// x = big + small, but for at most its last bit, as wgmma drops all but 11 bits of small.
__device__ inline void split(float x, float* big, float* small) {
  *big = round_to_tf32(x);
  *small = x - *big;
}

}  // namespace xgemm::cuda::gemm::tf32
