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

// The most rows of A that a tile reads in place. Lines of rows a multiple of a way of the L1 cache
// apart all fall on one set: more than it holds would drive each other out before their 16 floats
// are used. (Zen 4: 64 rows of 4096 x 4096 by 14, 8, 6 and 4: 0.89x, 1.15x, 1.12x and 1.09x as fast
// as with the weight packed.)
int64_t rows_in_place(const ConstMatrix& a, int64_t mr) {
  const CacheSizes& caches = cache_sizes();
  const int64_t way = caches.l1 / caches.l1_ways / element_size(a.dtype);
  const bool one_set = a.col_stride == 1 && a.row_stride % way == 0;
  return one_set ? std::min(mr, caches.l1_ways) : mr;
}

// One thread's part of D.
void run_part(const Product& p, const Kernels& table) {
  const bool read_a = p.a.dtype == DType::kF32;
  const int64_t nr = table.blocking.nr;
  const int64_t mr =
      panel_rows(p.m, read_a ? rows_in_place(p.a, table.blocking.mr) : table.blocking.mr);
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
  const int64_t k_blocks = ceil_div<int64_t>(p.k, table.blocking.kc);
  const auto multiply_tile = [&](int64_t i, int64_t j) {
    const int64_t rows = std::min(mr, p.m - i), cols = std::min(nr, p.n - j);
    const MicroKernel micro = table.micro[rows - 1][width_of(table, cols)];
    const float* a = read_a ? static_cast<const float*>(at(p.a, i, 0)) : packed_a.data() + i * p.k;
    const int64_t a_row = read_a ? p.a.row_stride : 1, a_col = read_a ? p.a.col_stride : mr;
    const Panel b = j < read_cols ? Panel{static_cast<const float*>(at(p.b, 0, j)), p.b.row_stride}
                                  : Panel{packed_b.data() + (j - read_cols) * p.k, nr};
    const bool whole = table.masks_columns || cols == nr || 2 * cols == nr;
    float* sums = in_place && whole ? static_cast<float*>(at(p.d, i, j)) : tile;
    const int64_t lds = in_place && whole ? p.d.row_stride : nr;
    for (int64_t block = 0; block < k_blocks; ++block) {
      const Range part = split_range(p.k, k_blocks, block, k_grain(p));
      micro(part.end - part.begin, a + part.begin * a_col, a_row, a_col, b.data + part.begin * b.ld,
            b.ld, sums, lds, block > 0, cols);
    }
    if (!plain || !whole) table.finish(p, i, j, rows, cols, sums, lds);
  };
  // A packed B is near; an A that is larger is to be read once.
  if (read_b) {
    for (int64_t j = 0; j < p.n; j += nr) {
      for (int64_t i = 0; i < p.m; i += mr) multiply_tile(i, j);
    }
  } else {
    for (int64_t i = 0; i < p.m; i += mr) {
      for (int64_t j = 0; j < p.n; j += nr) multiply_tile(i, j);
    }
  }
}

}  // namespace

void run_small(const Product& p, const Plan& plan, const Kernels& table, const Parallel& parallel) {
  const int64_t threads = int64_t{plan.threads_m} * plan.threads_n;
  if (threads == 1) return run_part(p, table);
  parallel.for_each(threads, [&](int64_t thread) {
    // Panels fit the rows of each.
    const Range rows = split_range(p.m, plan.threads_m, thread / plan.threads_n);
    const Range cols = split_range(p.n, plan.threads_n, thread % plan.threads_n, n_grain(p, table));
    if (rows.begin < rows.end && cols.begin < cols.end) run_part(part_of(p, rows, cols), table);
  });
}

}  // namespace xgemm::cpu::dense
