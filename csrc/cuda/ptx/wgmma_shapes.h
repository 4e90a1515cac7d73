// wgmma m64nNk16 for each width N, told apart by the N / 2 sums; wgmma.h says what it does.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/wgmma_sums.h"

namespace xgemm::ptx {

// ADD: the place of `accumulate`. Immediates say whether operands in shared memory are transposed.
#define XGEMM_WGMMA(N, COUNT, TYPE, A, B, ADD, IMMEDIATES, ...)                                 \
  asm volatile(                                                                                 \
      "{\n"                                                                                     \
      ".reg .pred accumulate;\n"                                                                \
      "setp.ne.b32 accumulate, %" #ADD                                                          \
      ", 0;\n"                                                                                  \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" XGEMM_PLACES_##COUNT \
      "}, " A ", %" #B ", accumulate, 1, 1, " IMMEDIATES                                        \
      ";\n"                                                                                     \
      "}\n"                                                                                     \
      : XGEMM_SUMS_##COUNT                                                                      \
      : __VA_ARGS__)

// P0 .. P6: the places that follow the sums'.
#define XGEMM_WGMMA_WIDTH(N, COUNT, P0, P1, P2, P3, P4, P5, P6)                                   \
  template <typename T, int kTransposeA, int kTransposeB>                                         \
  __device__ inline void wgmma(float (&d)[COUNT], uint64_t desc_a, uint64_t desc_b,               \
                               int accumulate) {                                                  \
    if constexpr (std::is_same_v<T, __half>) {                                                    \
      XGEMM_WGMMA(N, COUNT, "f16", "%" #P0, P1, P2, "%" #P3 ", %" #P4, "l"(desc_a), "l"(desc_b),  \
                  "r"(accumulate), "n"(kTransposeA), "n"(kTransposeB));                           \
    } else {                                                                                      \
      XGEMM_WGMMA(N, COUNT, "bf16", "%" #P0, P1, P2, "%" #P3 ", %" #P4, "l"(desc_a), "l"(desc_b), \
                  "r"(accumulate), "n"(kTransposeA), "n"(kTransposeB));                           \
    }                                                                                             \
  }                                                                                               \
  template <typename T, int kTransposeB>                                                          \
  __device__ inline void wgmma(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t desc_b,        \
                               int accumulate) {                                                  \
    if constexpr (std::is_same_v<T, __half>) {                                                    \
      XGEMM_WGMMA(N, COUNT, "f16", "{%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}", P4, P5, "%" #P6,   \
                  "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b), "r"(accumulate),       \
                  "n"(kTransposeB));                                                              \
    } else {                                                                                      \
      XGEMM_WGMMA(N, COUNT, "bf16", "{%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}", P4, P5, "%" #P6,  \
                  "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc_b), "r"(accumulate),       \
                  "n"(kTransposeB));                                                              \
    }                                                                                             \
  }

XGEMM_WGMMA_WIDTH(8, 4, 4, 5, 6, 7, 8, 9, 10)
XGEMM_WGMMA_WIDTH(16, 8, 8, 9, 10, 11, 12, 13, 14)
XGEMM_WGMMA_WIDTH(24, 12, 12, 13, 14, 15, 16, 17, 18)
XGEMM_WGMMA_WIDTH(32, 16, 16, 17, 18, 19, 20, 21, 22)
XGEMM_WGMMA_WIDTH(48, 24, 24, 25, 26, 27, 28, 29, 30)
XGEMM_WGMMA_WIDTH(64, 32, 32, 33, 34, 35, 36, 37, 38)
XGEMM_WGMMA_WIDTH(72, 36, 36, 37, 38, 39, 40, 41, 42)
XGEMM_WGMMA_WIDTH(80, 40, 40, 41, 42, 43, 44, 45, 46)
XGEMM_WGMMA_WIDTH(88, 44, 44, 45, 46, 47, 48, 49, 50)
XGEMM_WGMMA_WIDTH(96, 48, 48, 49, 50, 51, 52, 53, 54)
XGEMM_WGMMA_WIDTH(104, 52, 52, 53, 54, 55, 56, 57, 58)
XGEMM_WGMMA_WIDTH(112, 56, 56, 57, 58, 59, 60, 61, 62)
XGEMM_WGMMA_WIDTH(120, 60, 60, 61, 62, 63, 64, 65, 66)
XGEMM_WGMMA_WIDTH(128, 64, 64, 65, 66, 67, 68, 69, 70)
XGEMM_WGMMA_WIDTH(136, 68, 68, 69, 70, 71, 72, 73, 74)
XGEMM_WGMMA_WIDTH(144, 72, 72, 73, 74, 75, 76, 77, 78)
XGEMM_WGMMA_WIDTH(152, 76, 76, 77, 78, 79, 80, 81, 82)
XGEMM_WGMMA_WIDTH(160, 80, 80, 81, 82, 83, 84, 85, 86)
XGEMM_WGMMA_WIDTH(168, 84, 84, 85, 86, 87, 88, 89, 90)
XGEMM_WGMMA_WIDTH(176, 88, 88, 89, 90, 91, 92, 93, 94)
XGEMM_WGMMA_WIDTH(184, 92, 92, 93, 94, 95, 96, 97, 98)
XGEMM_WGMMA_WIDTH(192, 96, 96, 97, 98, 99, 100, 101, 102)
XGEMM_WGMMA_WIDTH(200, 100, 100, 101, 102, 103, 104, 105, 106)
XGEMM_WGMMA_WIDTH(208, 104, 104, 105, 106, 107, 108, 109, 110)
XGEMM_WGMMA_WIDTH(224, 112, 112, 113, 114, 115, 116, 117, 118)
XGEMM_WGMMA_WIDTH(240, 120, 120, 121, 122, 123, 124, 125, 126)
XGEMM_WGMMA_WIDTH(256, 128, 128, 129, 130, 131, 132, 133, 134)

#undef XGEMM_WGMMA_WIDTH
#undef XGEMM_WGMMA

}  // namespace xgemm::ptx
