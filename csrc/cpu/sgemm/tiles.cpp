#include "cpu/sgemm/tiles.h"

#include <algorithm>

namespace xgemm::cpu::dense {

void multiply_block(const Product& p, const Kernels& table, const TileBlock& block) {
  const int64_t nr = table.blocking.nr, mr = block.panel_rows;
  const bool plain = sums_in_place(p) && !p.has_epilogue();
  alignas(64) float tile[kMaxRows * kMaxPanelWidth];
  for (int64_t j = 0; j < block.cols; j += nr) {
    const int64_t cols = std::min(nr, block.cols - j);
    const float* b = block.b + j * block.kc;
    // Fewer columns than the kernel computes, or sums that live in no memory: by way of `tile`.
    const bool whole = table.masks_columns || cols == nr || 2 * cols == nr;
    for (int64_t i = 0; i < block.rows; i += mr) {
      const int64_t rows = std::min(mr, block.rows - i);
      const float* a = block.a + i * block.kc;
      const bool packed = rows == table.blocking.mr && cols == nr;
      const MicroKernel micro = packed ? table.micro_packed : micro_for(table, rows, cols);
      float* sums = block.sums == nullptr ? nullptr : block.sums + i * block.lds + j;
      if (sums != nullptr && whole) {
        micro(block.kc, a, 1, mr, b, nr, sums, block.lds, !block.first, cols);
      } else {
        micro(block.kc, a, 1, mr, b, nr, tile, nr, false, cols);
        if (sums == nullptr) {
          table.finish(p, block.i0 + i, block.j0 + j, rows, cols, tile, nr);
          continue;
        }
        for (int64_t r = 0; r < rows; ++r) {
          float* row = sums + r * block.lds;
          const float* added = tile + r * nr;
          for (int64_t c = 0; c < cols; ++c) row[c] = block.first ? added[c] : row[c] + added[c];
        }
      }
      if (block.last && !plain) {
        table.finish(p, block.i0 + i, block.j0 + j, rows, cols, sums, block.lds);
      }
    }
  }
}

void pack_b(const Product& p, const Kernels& table, int64_t k0, int64_t kc, int64_t n0, int64_t nc,
            float* panels) {
  if (nc == 0) return;
  if (p.b_source != nullptr) {
    p.b_source->pack(k0, kc, n0, nc, table.blocking.nr, panels);
    return;
  }
  const ConstMatrix columns{at(p.b, k0, n0), p.b.dtype, p.b.col_stride, p.b.row_stride};
  table.pack(columns, nc, kc, table.blocking.nr, panels);
}

}  // namespace xgemm::cpu::dense
