// Products that fit in the caches: no blocks, and no copy of what can be read in place.
#include <algorithm>

#include "common/math.h"
#include "cpu/buffer.h"
#include "cpu/sgemm/plan.h"
#include "cpu/sgemm/tiles.h"

namespace xgemm::cpu::dense {
namespace {

// Where the tile loop reads a panel of columns of B.
struct Panel {
  const float* data;
  int64_t ld;
};

// One thread's rows.
void run_rows(const Product& p, const Kernels& table) {
  const int64_t nr = table.blocking.nr, mr = panel_rows(p.m, table.blocking.mr);
  const bool read_a = p.a.dtype == DType::kF32;
  const bool read_b = p.b_source == nullptr && p.b.dtype == DType::kF32 && p.b.col_stride == 1;
  // Without masks a kernel reads NR or NR / 2 columns: a narrower last panel has to be filled up.
  const bool reads_all = table.masks_columns || 2 * (p.n % nr) == nr;
  const int64_t read_cols = !read_b ? 0 : reads_all ? p.n : p.n - p.n % nr;
  Buffer packed_a(Slot::kPackedA, read_a ? 0 : round_up(p.m, mr) * p.k);
  Buffer packed_b(Slot::kPackedB, round_up(p.n - read_cols, nr) * p.k);
  if (!read_a) table.pack(p.a, p.m, p.k, mr, packed_a.data());
  pack_b(p, table, 0, p.k, read_cols, p.n - read_cols, packed_b.data());

  const bool in_place = sums_in_place(p), plain = in_place && !p.has_epilogue();
  alignas(64) float tile[kMaxRows * kMaxPanelWidth];
  for (int64_t j = 0; j < p.n; j += nr) {
    const int64_t cols = std::min(nr, p.n - j);
    const int width = width_of(table, cols);
    const bool whole = table.masks_columns || cols == nr || 2 * cols == nr;
    const Panel b = j < read_cols ? Panel{static_cast<const float*>(at(p.b, 0, j)), p.b.row_stride}
                                  : Panel{packed_b.data() + (j - read_cols) * p.k, nr};
    for (int64_t i = 0; i < p.m; i += mr) {
      const int64_t rows = std::min(mr, p.m - i);
      const MicroKernel micro = table.micro[rows - 1][width];
      const float* a =
          read_a ? static_cast<const float*>(at(p.a, i, 0)) : packed_a.data() + i * p.k;
      const int64_t a_row = read_a ? p.a.row_stride : 1, a_col = read_a ? p.a.col_stride : mr;
      float* sums = in_place && whole ? static_cast<float*>(at(p.d, i, j)) : tile;
      const int64_t lds = in_place && whole ? p.d.row_stride : nr;
      micro(p.k, a, a_row, a_col, b.data, b.ld, sums, lds, false, cols);
      if (!plain || !whole) table.finish(p, i, j, rows, cols, sums, lds);
    }
  }
}

// Rows [begin, end) of the product.
Product rows_of(const Product& p, const Range& rows) {
  Product part = p;
  part.m = rows.end - rows.begin;
  part.a.data = at(p.a, rows.begin, 0);
  part.d.data = at(p.d, rows.begin, 0);
  if (p.c.data != nullptr) part.c.data = at(p.c, rows.begin, 0);
  if (p.bias.data != nullptr) part.bias.data = at(p.bias, rows.begin, 0);
  return part;
}

}  // namespace

void run_small(const Product& p, const Plan& plan, const Kernels& table, const Parallel& parallel) {
  if (plan.threads_m == 1) return run_rows(p, table);
  const int64_t mr = panel_rows(p.m, table.blocking.mr);
  parallel.for_each(plan.threads_m, [&](int64_t thread) {
    const Range mine = split_range(p.m, plan.threads_m, thread, mr);
    if (mine.begin < mine.end) run_rows(rows_of(p, mine), table);
  });
}

}  // namespace xgemm::cpu::dense
