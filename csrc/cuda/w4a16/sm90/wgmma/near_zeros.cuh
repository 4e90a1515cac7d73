// Zero points of two columns, as integers that codes are exactly apart from, and what they are off.
#pragma once

#include "cuda/w4a16/sm90/wgmma/dequant.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// By the intrinsics, of which the compiler makes operands that need no instruction.
__device__ inline __half2 both_low(__half2 x) { return __low2half2(x); }
__device__ inline __half2 both_high(__half2 x) { return __high2half2(x); }
__device__ inline __nv_bfloat162 both_low(__nv_bfloat162 x) { return __low2bfloat162(x); }
__device__ inline __nv_bfloat162 both_high(__nv_bfloat162 x) { return __high2bfloat162(x); }

// Columns whose codes lie in rows 0 and 1 of the operand (gid and gid + 8). A nibble becomes a
// number by the bits of 1024 (128 in bf16) above it; of row 1, in fp16, a 16th of its number is
// taken. Then `offset` is added, and the sum is the code less the integer next to the zero point.
template <typename T>
struct NearZeros {
  using P = typename Pair<T>::Type;
  P offset;
  __half2 apart;  // that integer less the zero point: 0 where that is one

  __device__ explicit NearZeros(__half2 zeros) {
    const __half2 most = __float2half2_rn(100.0f);       // bf16 has all integers up to 256
    const __half2 integers = __float2half2_rn(1536.0f);  // and nothing between them
    const __half2 bounded = __hmax2(__hmin2(zeros, most), __float2half2_rn(-100.0f));
    const __half2 near = __hsub2(__hadd2(bounded, integers), integers);
    apart = __hsub2(near, zeros);
    if constexpr (std::is_same_v<T, __half>) {
      offset = __hsub2(__floats2half2_rn(-1024.0f, -64.0f), near);
    } else {
      const float2 x = __half22float2(near);
      offset = Pair<T>::of(-128.0f - x.x, -128.0f - x.y);
    }
  }
};

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
