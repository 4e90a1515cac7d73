// What the tensor cores and the matrix loads and stores of a warp do.
#pragma once

#include <cstdint>

#include "emulator/engine.h"

namespace xgemm::emulator {

enum class Type16 { kF16, kBF16, kTf32 };  // kTf32: of wgmma m64nNk8, from registers and along k

// The PTX manual's fragments; `trans` as in ldmatrix.
void ldmatrix(uint32_t* d, int matrices, uint32_t row, bool trans);
void stmatrix_x4(void* row, const uint32_t (&r)[4]);
void stmatrix_trans(void* row, int matrices, const uint32_t (&r)[4]);
void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]);
void mma_m16n8k4_f64(double (&d)[4], const double (&a)[2], double b);
void mma_m16n8k16(Type16 type, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

// m16n16k16 of fp16; how its fragments lie is this file's own choice, as it is the hardware's.
void wmma_load(uint32_t (&fragment)[8], const void* tile, int stride);
void wmma_mma(float (&d)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]);
void wmma_store(float* tile, const float (&d)[8], int stride);

// One wgmma.mma_async m64nNk16. A is in shared memory, or in `a_registers`.
struct WarpgroupProduct {
  Type16 type;
  int n;
  float* d;  // the thread's n / 2 registers
  uint64_t a, b;
  const uint32_t* a_registers = nullptr;  // 4; read when the product is computed
  bool a_mn_major = false, b_mn_major = false;
  bool accumulate = true;
};
void wgmma(const WarpgroupProduct& product);
void wgmma_fence();
void wgmma_commit_group();
void wgmma_wait_group(size_t pending);

}  // namespace xgemm::emulator
