// What the host tells the sm_80 kernel.
#pragma once

#include "common/gemm_problem.h"

namespace xgemm::cuda::gemm::sm80 {

// A thread's first chunk in a tile is at most 64 lines from the tile's first one: a 32-bit number
// of bytes, where lines are nearer to each other than this.
inline constexpr int64_t kMaxLineStride = int64_t{1} << 25;  // elements

// How the 8 elements of a 16-byte chunk of an operand's tile get to shared memory.
enum class Access {
  kWhole16,  // cp.async: 16-byte aligned, an extent of 8 n leaves no chunk incomplete, and lines
             // are less than kMaxLineStride apart
  kCopy16,   // cp.async: 16-byte aligned
  kCopy8,    // two of 8 bytes
  kCopy4,    // four of 4 bytes
  kShift,    // contiguous, 2-byte aligned: aligned loads, shifted in registers
  kStrided,  // no dimension is contiguous: element by element
};

// An operand of the kernel: [rows, k] where rows are D's rows (A) or D's columns (B).
struct OperandParams {
  const void* data;
  int64_t row_stride, k_stride;  // elements
  Access access;
  bool mn_major;  // chunks run along the rows, in memory and in shared memory, else along k
};

// The problem as the kernel sees it: transposed where D is column-major, so that D's columns are
// (nearly) contiguous.
struct Params {
  int64_t m, n, k;
  OperandParams a, b;
  void* d;
  int64_t d_row_stride, d_col_stride;
  bool d_vector;     // four columns of D are one aligned 8-byte store
  const void* bias;  // or null; one of its strides is 0
  int64_t bias_row_stride, bias_col_stride;
  Activation activation;
  int batch_dims;
  BatchDim batch[kMaxBatchDims];
  int64_t batches;

  int splits;              // of K
  int64_t k_per_split;     // a multiple of BLOCK_K
  float* partials;         // [splits, batches, m, partial_stride], for splits > 1
  int64_t partial_stride;  // n, rounded up to 4
  uint32_t tiles_m, tiles_n;
  uint32_t tiles;  // times splits times batches
};

// Divisions by 64-bit numbers are calls, for which a kernel's mainloop would have to give up
// registers: a launch has fewer tiles, and so fewer batches, than this.
inline constexpr int64_t kMaxTiles = int64_t{1} << 31;

}  // namespace xgemm::cuda::gemm::sm80
