// A product on TF32 tensor cores as the sm_90a kernel sees it, without CUDA.
//
// wgmma takes TF32 operands from shared memory along k only. So one operand, Y, goes there, and the
// other, X, goes through registers, in whatever order it lies: either may be A or B.
#pragma once

#include <cstdint>

#include "common/gemm_problem.h"

namespace xgemm::cuda::gemm::tf32 {

inline constexpr int kBlockK = 32;  // 128 bytes: a swizzle's row

// Of a tile of the result: rows of X, rows of Y.
struct TileShape {
  int x, y;
};
// As many as 192 KB hold. Three products keep Y's small parts beside it.
constexpr int stages(bool three, TileShape tile) {
  return 192 * 1024 / (4 * kBlockK * (tile.x + tile.y * (three ? 2 : 1)));
}

// [rows, k]; strides in elements.
struct Matrix {
  const void* data;
  int64_t rows, row_stride, k_stride, batch_stride;

  bool fits_along_k() const;              // TMA reads its rows
  bool fits_along_rows(int64_t k) const;  // TMA reads its columns
};
Matrix a_of(const GemmProblem& problem);
Matrix b_of(const GemmProblem& problem);

// Whether the kernel takes the problem at all.
bool fits(const GemmProblem& problem);

struct Config {
  TileShape tile;
  bool swapped;  // X is B, else A
  int splits;    // of K
  int ctas;      // of the grid
};

// The kernel by mma.sync, for any strides.
namespace sm80 {
inline constexpr int kTile = 128, kStages = 3;
struct Config {
  int splits;  // of K
  int ctas;    // of all launches
};
}  // namespace sm80

int64_t batches_of(const GemmProblem& problem);

}  // namespace xgemm::cuda::gemm::tf32
