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

// Y = X W, fp16; W[k][n] = (code[k][n] - 8) * scale[k / 128][n].
struct QuantizedProduct {
  const void* x;          // [m, k]
  const uint32_t* codes;  // [k / 8, n], eight k a word, the lowest nibble first; or packed
  const void* scales;     // [k / 128, n]; or packed
  void* y;                // [m, n]
  void* workspace;        // [QuantizedRung::workspace_bytes]
  uint64_t* locks;        // [quantized_locks]: 0, and 0 again when the product is done
  int m, n, k;
  int sm_count;  // of the GPU
  cudaStream_t stream;
};

struct QuantizedRung {
  Status (*run)(const QuantizedProduct&);
  int64_t (*workspace_bytes)(const QuantizedProduct&);  // nullptr: none is needed
  bool packed;                                          // codes and scales, by pack_w4a16
  int tile_n, tile_k;                                   // what n and k must be multiples of
};

std::span<const QuantizedRung> w4a16_rungs();

inline int64_t quantized_locks(int64_t m, int64_t n) { return (m + 63) / 64 * (n / 64); }

// Codes and scales in the order in which packed rungs read them; as many bytes as before.
struct PackedWeights {
  const uint32_t* codes;
  const void* scales;
  uint32_t* packed_codes;
  void* packed_scales;
  int n, k;
  cudaStream_t stream;
};

Status pack_w4a16(const PackedWeights& weights);

// A loop of one instruction, or a plain read: what a ladder's share of the peak is taken of.
enum class Instruction { kFfma, kMma, kRead, kWgmma };

struct Peak {
  const float* x;  // [count], 16-byte aligned, a multiple of 4: what is read
  int64_t count;
  float* out;       // [peak_threads(sm_count)]
  int64_t* clocks;  // [2]: the first block adds its cycles, and its nanoseconds
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

// Probes: kernels that do one thing, to be timed.
//
// All warps of a block load from shared memory, `width` bytes a lane, the same pattern again and
// again: what limits them is how often a load's lanes wait for each other.
struct PatternProbe {
  const int* addresses;  // [32] bytes, multiples of width, each at most `bytes` - width
  int width;             // 4, 8 or 16
  int bytes;             // of shared memory, at most kPatternBytes
  int steps;
  float* out;       // [kPatternThreads]: a thread's sum; word i holds i
  int64_t* cycles;  // [1]
  cudaStream_t stream;
};

inline constexpr int kPatternThreads = 1024, kPatternBytes = 48 << 10, kPatternUnrolled = 16;

constexpr int64_t pattern_loads(int steps) {  // of all warps
  return int64_t{steps} * kPatternUnrolled * (kPatternThreads / 32);
}
Status run_pattern(const PatternProbe& probe);

// One warp: FMAs that each wait for the one before, or eight chains of them.
struct FmaProbe {
  bool dependent;
  int steps;
  float* out;       // [32]
  int64_t* cycles;  // [1]
  cudaStream_t stream;
};

inline constexpr int kFmasOfAStep = 64;  // of a thread
Status run_fma(const FmaProbe& probe);

// Thread i reads x[i * stride] and writes i to `found` if it is `sought`.
struct StrideProbe {
  const float* x;  // [loads * stride]
  int64_t loads;   // a multiple of kStrideThreads
  int stride;      // elements
  float sought;
  int64_t* found;  // [1]
  cudaStream_t stream;
};

inline constexpr int kStrideThreads = 256;
Status run_stride(const StrideProbe& probe);

}  // namespace xgemm::cuda::ladder
