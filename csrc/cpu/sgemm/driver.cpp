// Goto's loops: panels of B in the L1 cache, a block of A in each thread's L2, a block of B in L3.
#include <algorithm>

#include "common/math.h"
#include "cpu/buffer.h"
#include "cpu/sgemm/plan.h"
#include "cpu/sgemm/tiles.h"

namespace xgemm::cpu::dense {
namespace {

// Sums of a 16-bit D, and of one that still needs its C, lie here between blocks of k.
constexpr int64_t kPartialFloats = int64_t{4} << 20;

// What one pass over a block of B is about.
struct Pass {
  int64_t i0, rows;  // rows of D
  int64_t j0, cols;  // columns of D
  int64_t p0, kc;    // the part of k
  const float* b;    // packed panels of B
  float* sums;       // fp32 sums so far of D[i0, j0], or null: kept in no memory between blocks
  int64_t lds;
  bool first, last;  // of the blocks of k
};

void run_thread(const Product& p, const Plan& plan, const Kernels& table, const Pass& pass,
                int64_t thread) {
  const Blocking& blocking = table.blocking;
  const Range rows = split_range(pass.rows, plan.threads_m, thread / plan.threads_n);
  const Range cols = split_range(pass.cols, plan.threads_n, thread % plan.threads_n, blocking.nr);
  if (rows.begin == rows.end || cols.begin == cols.end) return;
  const int64_t blocks = ceil_div<int64_t>(rows.end - rows.begin, blocking.mc);
  Buffer packed(Slot::kPackedA, round_up<int64_t>(blocking.mc, blocking.mr) * pass.kc);
  for (int64_t block = 0; block < blocks; ++block) {
    Range part = split_range(rows.end - rows.begin, blocks, block, blocking.mr);
    const int64_t i = rows.begin + part.begin, count = part.end - part.begin;
    const ConstMatrix a{at(p.a, pass.i0 + i, pass.p0), p.a.dtype, p.a.row_stride, p.a.col_stride};
    const int64_t height = panel_rows(count, blocking.mr);
    table.pack(a, count, pass.kc, height, packed.data());
    TileBlock tiles;
    tiles.i0 = pass.i0 + i;
    tiles.rows = count;
    tiles.j0 = pass.j0 + cols.begin;
    tiles.cols = cols.end - cols.begin;
    tiles.kc = pass.kc;
    tiles.a = packed.data();
    tiles.panel_rows = height;
    tiles.b = pass.b + cols.begin * pass.kc;
    tiles.sums = pass.sums == nullptr ? nullptr : pass.sums + i * pass.lds + cols.begin;
    tiles.lds = pass.lds;
    tiles.first = pass.first;
    tiles.last = pass.last;
    tiles.fetch_b = true;
    tiles.ahead = {};
    if (block + 1 < blocks) {
      part = split_range(rows.end - rows.begin, blocks, block + 1, blocking.mr);
      tiles.ahead =
          rows_ahead(p.a, pass.i0 + rows.begin + part.begin, pass.p0, part.end - part.begin);
    }
    multiply_block(p, table, tiles);
  }
}

// All of D by the grid of threads, which share the packed blocks of B.
void run_loops(const Product& p, const Plan& plan, const Kernels& table, const Parallel& parallel) {
  const Blocking& blocking = table.blocking;
  const int64_t threads = int64_t{plan.threads_m} * plan.threads_n;
  const int64_t k_blocks = ceil_div<int64_t>(p.k, blocking.kc);
  const bool in_place = sums_in_place(p);
  const bool partial = k_blocks > 1 && !in_place;
  // A bounded buffer of partial sums bounds the block of D.
  const int64_t nc_limit = partial ? std::min<int64_t>(blocking.nc, 1024) : blocking.nc;
  const int64_t mc_limit = partial ? kPartialFloats / nc_limit : p.m;
  const int64_t n_blocks = ceil_div(p.n, nc_limit), m_blocks = ceil_div(p.m, mc_limit);
  const int64_t nc = round_up<int64_t>(ceil_div(p.n, n_blocks), blocking.nr);
  const int64_t kc_max = std::min<int64_t>(p.k, blocking.kc);
  Buffer packed(Slot::kPackedB, nc * kc_max);
  Buffer sums(Slot::kPartial, partial ? std::min(p.m, mc_limit + blocking.mr) * nc : 0);
  for (int64_t m_block = 0; m_block < m_blocks; ++m_block) {
    const Range rows = split_range(p.m, m_blocks, m_block, blocking.mr);
    for (int64_t j0 = 0; j0 < p.n; j0 += nc) {
      const int64_t cols = std::min(nc, p.n - j0);
      for (int64_t k_block = 0; k_block < k_blocks; ++k_block) {
        const Range part = split_range(p.k, k_blocks, k_block, k_grain(p));
        Pass pass{rows.begin,
                  rows.end - rows.begin,
                  j0,
                  cols,
                  part.begin,
                  part.end - part.begin,
                  packed.data(),
                  nullptr,
                  0,
                  k_block == 0,
                  k_block + 1 == k_blocks};
        if (in_place) {
          pass.sums = static_cast<float*>(at(p.d, rows.begin, j0));
          pass.lds = p.d.row_stride;
        } else if (partial) {
          pass.sums = sums.data();
          pass.lds = nc;
        }
        parallel.for_each(threads, [&](int64_t thread) {
          const Range mine = split_range(cols, threads, thread, n_grain(p, table));
          pack_b(p, table, part.begin, pass.kc, j0 + mine.begin, mine.end - mine.begin,
                 packed.data() + mine.begin * pass.kc);
        });
        parallel.for_each(threads,
                          [&](int64_t thread) { run_thread(p, plan, table, pass, thread); });
      }
    }
  }
}

}  // namespace

void run_blocked(const Product& p, const Plan& plan, const Kernels& table,
                 const Parallel& parallel) {
  if (!plan.apart) return run_loops(p, plan, table, parallel);
  Plan alone = plan;
  alone.threads_m = alone.threads_n = 1;
  parallel.for_each(int64_t{plan.threads_m} * plan.threads_n, [&](int64_t thread) {
    const Range rows = split_range(p.m, plan.threads_m, thread / plan.threads_n);
    const Range cols = split_range(p.n, plan.threads_n, thread % plan.threads_n, n_grain(p, table));
    if (rows.begin == rows.end || cols.begin == cols.end) return;
    run_loops(part_of(p, rows, cols), alone, table, Parallel(1));
  });
}

}  // namespace xgemm::cpu::dense
