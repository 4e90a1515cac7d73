#include "cpu/sgemm/tiles.h"

#include <algorithm>

namespace xgemm::cpu::dense {

namespace {

// What the kernels of one panel of B fetch, call by call: the next panel, then what the block says.
class Fetching {
 public:
  Fetching(const TileBlock& block, int64_t nr) : block_(block), nr_(nr), rows_(block.ahead) {}

  // Before the panel at `b` is used, and whether it is the last one, after which the first returns.
  void begin_panel(const float* b, bool last) {
    b_ = b;
    const float* next = last ? block_.b : b + nr_ * block_.kc;
    panel_ = {next, block_.fetch_b ? nr_ : 0, block_.kc};
  }
  Ahead next() {
    if (panel_.rows > 0) return panel_.take();
    if (rows_.rows > 0) return rows_.take();
    return {b_, 0};  // lines that are near already
  }

 private:
  const TileBlock& block_;
  const int64_t nr_;
  AheadRows panel_, rows_;
  const float* b_ = nullptr;
};

}  // namespace

void multiply_block(const Product& p, const Kernels& table, const TileBlock& block) {
  const int64_t nr = table.blocking.nr, mr = block.panel_rows;
  const bool plain = sums_in_place(p) && !p.has_epilogue();
  Fetching fetching(block, nr);
  alignas(64) float tile[kMaxRows * kMaxPanelWidth];
  for (int64_t j = 0; j < block.cols; j += nr) {
    const int64_t cols = std::min(nr, block.cols - j);
    const float* b = block.b + j * block.kc;
    const int width = width_of(table, cols);
    fetching.begin_panel(b, j + nr >= block.cols);
    // Fewer columns than the kernel computes, or sums that live in no memory: by way of `tile`.
    const bool whole = table.masks_columns || cols == nr || 2 * cols == nr;
    for (int64_t i = 0; i < block.rows; i += mr) {
      const int64_t rows = std::min(mr, block.rows - i);
      const float* a = block.a + i * block.kc;
      const PackedKernel packed = table.packed[rows - 1][width];
      const auto multiply = [&](float* out, int64_t ldo, bool accumulate) {
        packed(block.kc, a, mr, b, out, ldo, accumulate, cols, fetching.next());
      };
      float* sums = block.sums == nullptr ? nullptr : block.sums + i * block.lds + j;
      if (sums != nullptr && whole) {
        multiply(sums, block.lds, !block.first);
      } else {
        multiply(tile, nr, false);
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
