// ldmatrix (sm_75): one, two or four 8x8 matrices of 16-bit values from shared memory to
// registers.
#pragma once

#include <cstdint>

namespace xgemm::ptx {

// Lane 8 i + r gives the shared-memory address of row r of matrix i, which
// lands in d[i].
__device__ inline void ldmatrix_x4(uint32_t (&d)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(row)
               : "memory");
}

__device__ inline void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(row)
               : "memory");
}

// Two matrices: lanes 0 to 15 give the addresses.
__device__ inline void ldmatrix_x2(uint32_t (&d)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(d[0]), "=r"(d[1])
               : "r"(row)
               : "memory");
}

__device__ inline void ldmatrix_x2_trans(uint32_t (&d)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(d[0]), "=r"(d[1])
               : "r"(row)
               : "memory");
}

// One matrix: lanes 0 to 7 give the addresses.
__device__ inline void ldmatrix_x1(uint32_t (&d)[1], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(d[0])
               : "r"(row)
               : "memory");
}

__device__ inline void ldmatrix_x1_trans(uint32_t (&d)[1], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(d[0])
               : "r"(row)
               : "memory");
}

}  // namespace xgemm::ptx
