// The ladders: teaching kernels, one optimisation step a file. Each ladder is a table of rungs; a
// rung computes the same as its neighbours, for sizes that its tile divides.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "common/status.h"

namespace xgemm::cuda::ladder {

// out[0] = x[0] + ... + x[count - 1].
struct Sum {
  const float* x;   // [count], 16-byte aligned
  float* partials;  // [count / SumRung::tile]
  float* out;       // [1]
  int64_t count;
  int sm_count;  // of the GPU
  cudaStream_t stream;
};

struct SumRung {
  Status (*run)(const Sum&);
  int tile;  // elements; count must be a multiple of it
};

std::span<const SumRung> reduce_rungs();

// C = A B, row-major and contiguous.
struct Product {
  const void* a;  // [m, k]
  const void* b;  // [k, n]; hopper: [n, k], and C = A B^T
  void* c;        // [m, n]
  int m, n, k;
  int sm_count;  // of the GPU
  cudaStream_t stream;
};

struct ProductRung {
  Status (*run)(const Product&);
  int tile_m, tile_n, tile_k;  // what m, n and k must be multiples of
};

std::span<const ProductRung> sgemm_rungs();  // fp32
std::span<const ProductRung> hgemm_rungs();  // fp16
// bf16, and C = A B^T; compute capability 9.0 only
std::span<const ProductRung> hopper_rungs();

// A loop of one instruction, or a plain read: what a ladder's share of the peak is taken of.
enum class Instruction { kFfma, kMma, kRead, kWgmma };

struct Peak {
  const float* x;  // [count], 16-byte aligned, a multiple of 4: what is read
  int64_t count;
  float* out;       // [peak_threads(sm_count)]
  int64_t* cycles;  // [1]: of the first block
  int steps;        // of the loop
  int sm_count;
  cudaStream_t stream;
};

int peak_threads(int sm_count);
double peak_work(Instruction instruction, const Peak& peak);  // FLOP, or bytes
Status run_peak(Instruction instruction, const Peak& peak);

// kWgmma's, which is compiled for compute capability 9.0 only.
double wgmma_peak_work(const Peak& peak);
Status run_wgmma_peak(const Peak& peak);

}  // namespace xgemm::cuda::ladder
