// wgmma m64nNk8 over TF32 operands for each width N, told apart by the N / 2 sums.
// d += a b, or d = a b where `accumulate` is 0. A is in registers: lane 4 g + t of warp w has
// A[16 w + g + 8 (i % 2)][t + 4 (i / 2)] in a[i], or in shared memory; B is in shared memory. There
// both lie along k. The lowest 13 bits of both are not looked at.
#pragma once

#include <cstdint>

#include "cuda/ptx/wgmma_sums.h"

namespace xgemm::ptx {

// ADD: the place of `accumulate`.
#define XGEMM_WGMMA(N, COUNT, A, B, ADD, ...)                                          \
  asm volatile(                                                                        \
      "{\n"                                                                            \
      ".reg .pred accumulate;\n"                                                       \
      "setp.ne.b32 accumulate, %" #ADD                                                 \
      ", 0;\n"                                                                         \
      "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" XGEMM_PLACES_##COUNT \
      "}, " A ", %" #B                                                                 \
      ", accumulate, 1, 1;\n"                                                          \
      "}\n"                                                                            \
      : XGEMM_SUMS_##COUNT                                                             \
      : __VA_ARGS__)

// P0 .. P5: the places that follow the sums'.
#define XGEMM_WGMMA_WIDTH(N, COUNT, P0, P1, P2, P3, P4, P5)                                  \
  __device__ inline void wgmma_tf32(float (&d)[COUNT], uint64_t desc_a, uint64_t desc_b,     \
                                    int accumulate) {                                        \
    XGEMM_WGMMA(N, COUNT, "%" #P0, P1, P2, "l"(desc_a), "l"(desc_b), "r"(accumulate));       \
  }                                                                                          \
  __device__ inline void wgmma_tf32(float (&d)[COUNT], const float (&a)[4], uint64_t desc_b, \
                                    int accumulate) {                                        \
    XGEMM_WGMMA(N, COUNT, "{%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}", P4, P5,                \
                "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])),                      \
                "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])), "l"(desc_b),         \
                "r"(accumulate));                                                            \
  }

XGEMM_WGMMA_WIDTH(64, 32, 32, 33, 34, 35, 36, 37)
XGEMM_WGMMA_WIDTH(128, 64, 64, 65, 66, 67, 68, 69)
XGEMM_WGMMA_WIDTH(192, 96, 96, 97, 98, 99, 100, 101)
XGEMM_WGMMA_WIDTH(256, 128, 128, 129, 130, 131, 132, 133)

#undef XGEMM_WGMMA_WIDTH
#undef XGEMM_WGMMA

}  // namespace xgemm::ptx
