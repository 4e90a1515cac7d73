// The two inner loops: register tiles over a packed block of A and packed panels of B.
#pragma once

#include "cpu/sgemm/kernels.h"

namespace xgemm::cpu::dense {

// Rows of floats that are read soon, which the kernels fetch to the L2 cache meanwhile.
struct AheadRows {
  const float* data = nullptr;
  int64_t rows = 0, stride = 0;

  // The next kAheadRows rows (the last ones are less: what lies behind them is fetched, too).
  Ahead take() {
    const Ahead ahead{data, stride};
    data += kAheadRows * stride;
    rows -= kAheadRows;
    return ahead;
  }
};

// The rows of an operand, `count` of k from (i, p) on; none where they are no rows of floats.
inline AheadRows rows_ahead(const ConstMatrix& x, int64_t i, int64_t p, int64_t count) {
  if (x.dtype != DType::kF32 || x.col_stride != 1 || x.data == nullptr) return {};
  return {static_cast<const float*>(at(x, i, p)), count, x.row_stride};
}

struct TileBlock {
  int64_t i0, rows;  // rows of D
  int64_t j0, cols;  // columns of D
  int64_t kc;        // length of the sums
  const float* a;    // panels of panel_rows rows
  int64_t panel_rows;
  const float* b;  // panels of NR columns
  float* sums;     // where the sums of D[i0, j0] stand between blocks of k; null for one block
  int64_t lds;
  bool first, last;  // of the blocks of k
  bool fetch_b;      // the panels of B are not in the L2 cache yet
  AheadRows ahead;   // rows of kc floats
};

// Whether D itself can hold the fp32 sums between blocks of k.
inline bool sums_in_place(const Product& p) {
  return p.d.dtype == DType::kF32 && p.d.col_stride == 1 && p.beta == 0.0f;
}

// Where k and n are cut: a source of panels has groups of its own, which a cut should not divide.
inline int64_t k_grain(const Product& p) { return p.b_source != nullptr ? 128 : 8; }
inline int64_t n_grain(const Product& p, const Kernels& table) {
  return p.b_source != nullptr ? 64 : table.blocking.nr;
}

// Adds the block's products to the sums, and finishes D after the last block of k.
void multiply_block(const Product& p, const Kernels& table, const TileBlock& block);

// B[k0 : k0 + kc, n0 : n0 + nc] as panels of NR columns.
void pack_b(const Product& p, const Kernels& table, int64_t k0, int64_t kc, int64_t n0, int64_t nc,
            float* panels);

}  // namespace xgemm::cpu::dense
