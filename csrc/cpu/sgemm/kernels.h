// The inner kernels of the family, one table for each instruction set.
#pragma once

#include "cpu/sgemm/blocking.h"
#include "cpu/sgemm/product.h"

namespace xgemm::cpu::dense {

// out[i, j] (+)= sum over p of a[i * a_row + p * a_col] * b[p * ldb + j] for a fixed tile of rows
// and columns; out has unit column stride, ldo between rows. The sum runs in the order of p. Only
// the first `cols` columns count: a table that masks columns leaves the others alone.
using MicroKernel = void (*)(int64_t kc, const float* a, int64_t a_row, int64_t a_col,
                             const float* b, int64_t ldb, float* out, int64_t ldo, bool accumulate,
                             int64_t cols);

// What a packed kernel fetches to the L2 cache for those after it: kAheadRows rows of kc floats,
// `stride` floats apart.
struct Ahead {
  const float* data;
  int64_t stride;
};
inline constexpr int kAheadRows = 8;

// A MicroKernel over packed panels: of A, `a_step` wide, and of B, NR wide.
using PackedKernel = void (*)(int64_t kc, const float* a, int64_t a_step, const float* b,
                              float* out, int64_t ldo, bool accumulate, int64_t cols, Ahead ahead);

// Writes x [extent, k] as fp32 panels of `width` rows: out[(i / width) * k * width + p * width + i
// % width] = x(i, p); the last panel is filled up with zeros. At most kMaxPanelWidth wide.
using PackPanels = void (*)(const ConstMatrix& x, int64_t extent, int64_t k, int64_t width,
                            float* out);

// D[i0 + i, j0 + j] = activation(alpha * sums[i * ld + j] + beta * C + bias), rounded once. `sums`
// may be D itself.
using Finish = void (*)(const Product& p, int64_t i0, int64_t j0, int64_t rows, int64_t cols,
                        const float* sums, int64_t ld);

// For each column j of `cols` columns of B (k contiguous: column j is at b + j * ldb elements of
// `b_dtype`) and each of `rows` rows of A (fp32, k contiguous, lda apart):
// sums[i * lds + j] = dot(A[i, :], B[:, j]). `ahead`: B is in no cache, and the columns after these
// are next.
using DotColumns = void (*)(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                            const void* b, DType b_dtype, int64_t ldb, bool ahead, float* sums,
                            int64_t lds);

// sums[i * lds + j] += sum over p < k of A[i * lda + p] * B[p, j], B with unit column stride and
// ldb elements of `b_dtype` between rows; at most 4 rows. Rows of sums are rewritten up to the next
// multiple of 16 columns.
using AddRows = void (*)(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                         const void* b, DType b_dtype, int64_t ldb, float* sums, int64_t lds);

inline constexpr int kMaxRows = 14;
inline constexpr int kMaxPanelWidth = 32;
inline constexpr int kWidths = 3;

struct Bf16Kernels;  // bf16.h

struct Kernels {
  Isa isa;
  Blocking blocking;
  // [rows - 1][width]: for up to NR / 4, NR / 2 or NR columns (width_of); over operands that are
  // read where they lie, and over packed panels.
  MicroKernel micro[kMaxRows][kWidths];
  PackedKernel packed[kMaxRows][kWidths];
  // Whether tile kernels read and write `cols` columns only, else all that they compute.
  bool masks_columns;
  PackPanels pack;
  Finish finish;
  // Up to so many rows of A it pays to stream B instead of packing it: along k from the caches,
  // from memory, or where columns do not begin with cache lines; and along n.
  int dot_rows, dot_rows_from_memory, dot_rows_unaligned;
  int add_rows_rows;
  DotColumns dot_columns;
  AddRows add_rows;
  // Products of bf16 by their own instructions, or null.
  const Bf16Kernels* bf16 = nullptr;
};

extern const Kernels kGenericKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

// The table for isa().
const Kernels& kernels();

// The width of tile kernels for `cols` columns, at most NR. A table that does not mask columns
// computes NR / 2 or NR of them.
inline int width_of(const Kernels& table, int64_t cols) {
  return (2 * cols > table.blocking.nr ? 1 : 0) + (4 * cols > table.blocking.nr ? 1 : 0);
}

}  // namespace xgemm::cpu::dense
