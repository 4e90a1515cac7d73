// Few blocks of rows: A is packed whole, once or by each thread, and each thread packs and uses the
// columns of B that it owns while they are in its L2 cache. However long k is, the threads meet at
// most once.
#include <algorithm>
#include <optional>

#include "common/math.h"
#include "cpu/buffer.h"
#include "cpu/sgemm/plan.h"
#include "cpu/sgemm/tiles.h"

namespace xgemm::cpu::dense {
namespace {

// Columns that a thread packs at a time: a panel, which is used while it is in the nearest caches;
// more of a source of panels, which takes longer to begin.
int64_t columns_of(const Product& p) { return p.b_source != nullptr ? 128 : 32; }

// The largest A that each thread packs for itself: that takes no longer than to meet, and to read
// what another packed. (Zen 4, two threads, A of 5 to 1000 KiB: 0.99x to 1.18x as fast, larger ones
// 0.98x to 1.0x.)
constexpr int64_t kOwnFloats = int64_t{1} << 18;

struct Blocks {
  int64_t count, k, grain;
  Range operator[](int64_t i) const { return split_range(k, count, i, grain); }
};

// Rows `mine` of A as panels of `mr` rows, block of k by block: their place among all `rows`.
void pack_rows(const Product& p, const Kernels& table, const Blocks& blocks, const Range& mine,
               int64_t mr, int64_t rows, float* packed) {
  for (int64_t block = 0; block < blocks.count; ++block) {
    const Range part = blocks[block];
    const int64_t kc = part.end - part.begin;
    const ConstMatrix a{at(p.a, mine.begin, part.begin), p.a.dtype, p.a.row_stride, p.a.col_stride};
    table.pack(a, mine.end - mine.begin, kc, mr, packed + rows * part.begin + mine.begin * kc);
  }
}

}  // namespace

void run_short(const Product& p, const Plan& plan, const Kernels& table, const Parallel& parallel) {
  const Blocking& blocking = table.blocking;
  const int64_t mr = panel_rows(p.m, blocking.mr), rows = round_up(p.m, mr);
  const Blocks blocks{ceil_div<int64_t>(p.k, blocking.kc), p.k, k_grain(p)};
  const bool own = plan.threads_n > 1 && p.k <= kOwnFloats / p.m;
  std::optional<Buffer> shared_a;
  if (!own) {
    shared_a.emplace(Slot::kPackedA, rows * p.k);
    const int64_t packers = std::min<int64_t>(plan.threads_n, rows / mr);
    parallel.for_each(packers, [&](int64_t thread) {
      const Range mine = split_range(p.m, packers, thread, mr);
      pack_rows(p, table, blocks, mine, mr, rows, shared_a->data());
    });
  }

  const bool in_place = sums_in_place(p);
  const int64_t wide = columns_of(p);
  const bool partial = blocks.count > 1 && !in_place;
  parallel.for_each(plan.threads_n, [&](int64_t thread) {
    const Range mine = split_range(p.n, plan.threads_n, thread, n_grain(p, table));
    if (mine.begin == mine.end) return;
    std::optional<Buffer> own_a;
    if (own) {
      own_a.emplace(Slot::kPackedA, rows * p.k);
      pack_rows(p, table, blocks, {0, p.m}, mr, rows, own_a->data());
    }
    const float* packed_a = own ? own_a->data() : shared_a->data();
    Buffer packed_b(Slot::kPackedB, wide * std::min<int64_t>(p.k, blocking.kc));
    Buffer sums(Slot::kPartial, partial ? p.m * wide : 0);
    for (int64_t j = mine.begin; j < mine.end; j += wide) {
      TileBlock tiles{};
      tiles.rows = p.m;
      tiles.j0 = j;
      tiles.cols = std::min(wide, mine.end - j);
      tiles.panel_rows = mr;
      tiles.b = packed_b.data();
      if (in_place) {
        tiles.sums = static_cast<float*>(at(p.d, 0, j));
        tiles.lds = p.d.row_stride;
      } else if (partial) {
        tiles.sums = sums.data();
        tiles.lds = wide;
      }
      for (int64_t block = 0; block < blocks.count; ++block) {
        const Range part = blocks[block];
        tiles.kc = part.end - part.begin;
        tiles.a = packed_a + rows * part.begin;
        tiles.first = block == 0;
        tiles.last = block + 1 == blocks.count;
        tiles.fetch_b = false;
        tiles.ahead = {};
        if (p.b_source == nullptr) {
          const int64_t next_j = tiles.last ? j + wide : j;
          if (next_j < mine.end) {
            tiles.ahead =
                rows_ahead(transpose(p.b), next_j, blocks[tiles.last ? 0 : block + 1].begin,
                           std::min(wide, mine.end - next_j));
          }
        }
        pack_b(p, table, part.begin, tiles.kc, j, tiles.cols, packed_b.data());
        multiply_block(p, table, tiles);
      }
    }
  });
}

}  // namespace xgemm::cpu::dense
