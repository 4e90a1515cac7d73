// wmma (sm_70): products of 16x16 tiles whose fragments the hardware lays out as it likes.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace xgemm::ptx {

// A tile of A [16 m][16 k], row-major; `stride` elements from row to row, a multiple of 8. `tile`
// lies in global or shared memory, aligned to 32 bytes.
__device__ inline void wmma_load_a(uint32_t (&a)[8], const __half* tile, int stride) {
  asm volatile(
      "wmma.load.a.sync.aligned.row.m16n16k16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
      : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]), "=r"(a[4]), "=r"(a[5]), "=r"(a[6]),
        "=r"(a[7])
      : "l"(tile), "r"(stride)
      : "memory");
}

// A tile of B [16 k][16 n], row-major.
__device__ inline void wmma_load_b(uint32_t (&b)[8], const __half* tile, int stride) {
  asm volatile(
      "wmma.load.b.sync.aligned.row.m16n16k16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
      : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]), "=r"(b[4]), "=r"(b[5]), "=r"(b[6]),
        "=r"(b[7])
      : "l"(tile), "r"(stride)
      : "memory");
}

// d += a b.
__device__ inline void wmma_mma(float (&d)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
  asm volatile(
      "wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, "
      "{%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]),
        "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]));
}

// To a tile of C [16 m][16 n], row-major.
__device__ inline void wmma_store(float* tile, const float (&d)[8], int stride) {
  asm volatile(
      "wmma.store.d.sync.aligned.row.m16n16k16.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;" ::
          "l"(tile),
      "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]), "f"(d[7]),
      "r"(stride)
      : "memory");
}

}  // namespace xgemm::ptx
