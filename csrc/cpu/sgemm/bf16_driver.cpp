// Products of bf16 by tiles: the operand with fewer rows or columns is packed whole, by all threads
// together or by each for itself; each thread then packs blocks of the other and multiplies them
// with all of it.
#include <vector>

#include "common/math.h"
#include "cpu/buffer.h"
#include "cpu/sgemm/bf16.h"
#include "cpu/sgemm/plan.h"

namespace xgemm::cpu::dense {
namespace {

// A block of kStreamExtent by kBlockK stays in the L2 cache. Tiles come from there: 4 products take
// 64 cycles, in which 4 tiles arrive. Shorter blocks of k, of which a panel would fit in the L1,
// cost more by reading and writing sums (bench_cpu.py, on a Xeon with AMX).
constexpr int64_t kBlockK = 2048;
constexpr int64_t kStreamExtent = 128;
// What is packed whole at a time.
constexpr int64_t kWholeElements = int64_t{4} << 20;

// An operand of which the extent (rows of A, columns of B) is packed in panels.
struct Operand {
  ConstMatrix x;  // [extent, k]
  int64_t extent;
  bool pairs;  // B
};

// Packed [extent, k]: each block of k by itself, panels in it.
struct Packed {
  uint16_t* tiles;
  Lowest* lowest;  // [block of k][panel]
};

class Bf16Product {
 public:
  Bf16Product(const Product& p, const Kernels& table)
      : p_(p),
        kernels_(*table.bf16),
        transposed_(transpose(p)),
        across_(p.d.col_stride == 1 || p.d.row_stride != 1),
        k_blocks_(ceil_div(p.k, kBlockK)) {}

  void run(int threads, const Parallel& parallel) {
    const Operand a{p_.a, p_.m, false}, b{transpose(p_.b), p_.n, true};
    const bool b_whole = p_.n <= p_.m;
    const Operand &whole = b_whole ? b : a, &stream = b_whole ? a : b;
    const int64_t wide =
        std::min(round_up(whole.extent, kBlockExtent),
                 std::max(kWholeElements / round_up(p_.k, kTileK) / kBlockExtent, int64_t{8}) *
                     kBlockExtent);
    const int64_t panels = wide / kTileExtent;
    Buffer memory(Slot::kPackedB, wide * round_up(p_.k, kTileK) / 2);
    std::vector<Lowest> lowest(static_cast<size_t>(k_blocks_ * panels));
    const Packed packed{reinterpret_cast<uint16_t*>(memory.data()), lowest.data()};
    for (int64_t first = 0; first < whole.extent; first += wide) {
      const Range part{first, std::min(first + wide, whole.extent)};
      std::fill(lowest.begin(), lowest.end(), Lowest{});
      pack_whole(whole, part, panels, packed, threads, parallel);
      parallel.for_each(threads, [&](int64_t thread) {
        const Range mine = split_range(stream.extent, threads, thread, kBlockExtent);
        run_thread(part, panels, packed, stream, mine);
      });
    }
  }

 private:
  Range block_of_k(int64_t block) const { return split_range(p_.k, k_blocks_, block, kTileK); }

  static ConstMatrix part_of(const Operand& operand, int64_t first, int64_t k) {
    ConstMatrix x = operand.x;
    x.data = at(x, first, k);
    return x;
  }

  void pack_whole(const Operand& whole, const Range& part, int64_t panels, const Packed& packed,
                  int threads, const Parallel& parallel) const {
    // Units: some panels of one block of k.
    const int64_t slices = k_blocks_ >= threads ? 1 : std::min<int64_t>(threads, panels);
    const int64_t units = k_blocks_ * slices;
    const int64_t tasks = std::min<int64_t>(threads, units);
    parallel.for_each(tasks, [&](int64_t task) {
      const Range mine = split_range(units, tasks, task);
      for (int64_t unit = mine.begin; unit < mine.end; ++unit) {
        const int64_t block = unit / slices;
        const Range k = block_of_k(block);
        const Range rows = split_range(part.end - part.begin, slices, unit % slices, kTileExtent);
        const int64_t depth = k.end - k.begin, panel = rows.begin / kTileExtent;
        uint16_t* out = packed.tiles + k.begin * panels * kTileExtent +
                        panel * round_up(depth, kTileK) * kTileExtent;
        pack_bf16_avx512(part_of(whole, part.begin + rows.begin, k.begin), rows.end - rows.begin,
                         depth, whole.pairs, out, packed.lowest + block * panels + panel);
      }
    });
    // What a tile of D has met so far decides: a small sum would be lost in a later block of k.
    for (int64_t i = panels; i < k_blocks_ * panels; ++i) {
      packed.lowest[i].add(packed.lowest[i - panels]);
    }
  }

  // Rows (or columns) `mine` of the stream times the part of the other operand that is packed.
  void run_thread(const Range& part, int64_t panels, const Packed& packed, const Operand& stream,
                  const Range& mine) const {
    if (mine.begin == mine.end) return;
    const int64_t whole_blocks = ceil_div(part.end - part.begin, kBlockExtent);
    const int64_t extent = std::min(kStreamExtent, mine.end - mine.begin);
    const int64_t stream_blocks = ceil_div(extent, kBlockExtent);
    Buffer memory(Slot::kPackedA, stream_blocks * kBlockExtent * kBlockK / 2);
    auto* const tiles = reinterpret_cast<uint16_t*>(memory.data());
    // Sums of a block of k, and one block of D, transposed.
    Buffer partial(Slot::kPartial,
                   ((k_blocks_ > 1 ? stream_blocks * whole_blocks : 1) + 1) * kBlockFloats);
    std::vector<Lowest> lowest(static_cast<size_t>(2 * stream_blocks));
    kernels_.begin();
    for (int64_t s0 = mine.begin; s0 < mine.end; s0 += kStreamExtent) {
      const int64_t rows = std::min(kStreamExtent, mine.end - s0);
      std::fill(lowest.begin(), lowest.end(), Lowest{});
      for (int64_t block = 0; block < k_blocks_; ++block) {
        const Range k = block_of_k(block);
        const int64_t depth = round_up(k.end - k.begin, kTileK), panel = depth * kTileExtent;
        pack_bf16_avx512(part_of(stream, s0, k.begin), rows, k.end - k.begin, stream.pairs, tiles,
                         lowest.data());
        const uint16_t* const others = packed.tiles + k.begin * panels * kTileExtent;
        const Lowest* const others_lowest = packed.lowest + block * panels;
        for (int64_t j = 0; j < part.end - part.begin; j += kBlockExtent) {
          for (int64_t i = 0; i < rows; i += kBlockExtent) {
            Side s{tiles + i / kTileExtent * panel, &lowest[i / kTileExtent], s0 + i,
                   std::min(kBlockExtent, rows - i)};
            Side w{others + j / kTileExtent * panel, others_lowest + j / kTileExtent,
                   part.begin + j, std::min(kBlockExtent, part.end - part.begin - j)};
            float* sums = partial.data() + kBlockFloats;
            if (k_blocks_ > 1) {
              sums += (i / kBlockExtent * whole_blocks + j / kBlockExtent) * kBlockFloats;
            }
            multiply(stream.pairs ? w : s, stream.pairs ? s : w, depth, block, sums,
                     partial.data());
          }
        }
      }
    }
    kernels_.end();
  }

  // One operand of a block of D.
  struct Side {
    const uint16_t* tiles;
    const Lowest* lowest;  // of its panels
    int64_t first, count;  // rows or columns of D
    int tiles_used() const { return count > kTileExtent ? 2 : 1; }
    Lowest least() const {
      Lowest both = lowest[0];
      if (tiles_used() == 2) both.add(lowest[1]);
      return both;
    }
  };

  void multiply(const Side& a, const Side& b, int64_t depth, int64_t block, float* sums,
                float* turned) const {
    const Bf16Block problem{.a = a.tiles,
                            .b = b.tiles,
                            .a_next = depth * kTileExtent,
                            .b_next = depth * kTileExtent,
                            .row_tiles = a.tiles_used(),
                            .col_tiles = b.tiles_used(),
                            .steps = depth / kTileK,
                            .sums = sums,
                            .accumulate = block > 0};
    if (flushes_nothing(a.least(), b.least())) {
      kernels_.multiply(problem);
    } else {
      multiply_exact_avx512(problem);
    }
    if (block + 1 < k_blocks_) return;
    if (across_) {
      finish_bf16_avx512(p_, a.first, b.first, a.count, b.count, sums, kBlockExtent);
    } else {
      transpose_block_avx512(sums, turned);
      finish_bf16_avx512(transposed_, b.first, a.first, b.count, a.count, turned, kBlockExtent);
    }
  }

  const Product& p_;
  const Bf16Kernels& kernels_;
  const Product transposed_;  // D^T, for a D whose columns are contiguous
  const bool across_;
  const int64_t k_blocks_;
};

// Cycles for 1 KiB of an operand that is copied, one that is transposed, and 1 KiB of sums.
constexpr double kCopyCycles = 32, kTransposeCycles = 80, kTurnCycles = 64;

double packing_cycles(const Product& p) {
  const double m = static_cast<double>(p.m), n = static_cast<double>(p.n),
               k = static_cast<double>(p.k);
  const bool rows_turn = p.a.col_stride != 1, cols_turn = p.b.row_stride == 1;
  const bool d_turns = p.d.col_stride != 1 && p.d.row_stride == 1;
  return (m * k * (rows_turn ? kTransposeCycles : kCopyCycles) +
          n * k * (cols_turn ? kTransposeCycles : kCopyCycles)) /
             kTileElements +
         (d_turns ? m * n / (kTileExtent * kTileExtent) * kTurnCycles : 0.0);
}

}  // namespace

bool bf16_transposes(const Product& p) { return packing_cycles(transpose(p)) < packing_cycles(p); }

void run_bf16(const Product& p, const Plan& plan, const Kernels& table, const Parallel& parallel) {
  const int64_t threads = int64_t{plan.threads_m} * plan.threads_n;
  if (!plan.apart) return Bf16Product(p, table).run(static_cast<int>(threads), parallel);
  parallel.for_each(threads, [&](int64_t thread) {
    const Range all_rows{0, p.m}, all_cols{0, p.n};
    const Range rows = p.n <= p.m ? split_range(p.m, threads, thread, kBlockExtent) : all_rows;
    const Range cols = p.n <= p.m ? all_cols : split_range(p.n, threads, thread, kBlockExtent);
    if (rows.begin == rows.end || cols.begin == cols.end) return;
    const Product part = part_of(p, rows, cols);
    Bf16Product(part, table).run(1, Parallel(1));
  });
}

}  // namespace xgemm::cpu::dense
