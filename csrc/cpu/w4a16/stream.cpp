// Few rows of X: which problems stream, how they are cut between threads, and the epilogue.
#include "cpu/w4a16/stream.h"

#include <algorithm>
#include <atomic>
#include <sstream>
#include <type_traits>
#include <vector>

#include "common/json.h"
#include "cpu/isa/convert.h"
#include "cpu/isa/isa.h"
#include "cpu/w4a16/api.h"
#include "cpu/w4a16/dequant.h"
#include "cpu/w4a16/digits.h"
#include "cpu/w4a16/rows.h"
#include "cpu/w4a16/tiles.h"

namespace xgemm::cpu {
namespace {

using w4a16::DigitBlock;
using w4a16::kColumns;
using w4a16::PartBlock;
using w4a16::RowBlock;

// From here on the blocked driver, which dequantizes once for all rows, is faster.
constexpr int64_t kStreamMaxRows = 16;
// Rows that are turned into digits at a time: what they take stays in the caches.
constexpr int64_t kDigitChunk = 256;

// Products of a weight and an activation below which waking another thread costs more than it
// saves.
constexpr int64_t kProductsPerTask = 1 << 17;
// The same where tiles multiply; decoding the weights costs as much as 16 rows. (Xeon: 16 rows of
// 576x576 take 51 us with one thread and 56 with two, 5 rows of 1536x576 74 and 58.)
constexpr int64_t kTileProductsPerTask = 1 << 24, kDecodingRows = 16;

// Columns [column, column + count) of a row of Y.
void store_row(const W4Problem& problem, int64_t row, int64_t column, int64_t count, float unscale,
               float* values) {
  const int64_t size = element_size(problem.dtype);
  const auto* bias = static_cast<const char*>(problem.bias);
  auto* y = static_cast<char*>(problem.y);
  const int64_t base = row * problem.y_row_stride + column * problem.y_col_stride;
  if (isa() != Isa::kGeneric && problem.y_col_stride == 1 &&
      (problem.bias == nullptr || problem.bias_stride == 1)) {
    const w4a16::RowOutput out{y + base * size,
                               problem.bias == nullptr ? nullptr : bias + column * size,
                               problem.activation};
    w4a16::store_row_avx2(out, problem.dtype, count, unscale, values);
    return;
  }
  for (int64_t i = 0; i < count; ++i) values[i] *= unscale;
  if (problem.bias != nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      values[i] += load_float(bias + (column + i) * problem.bias_stride * size, problem.dtype);
    }
  }
  if (problem.activation != Activation::kNone) {
    for (int64_t i = 0; i < count; ++i) values[i] = activate(problem.activation, values[i]);
  }
  for (int64_t i = 0; i < count; ++i) {
    store_float(y + (base + i * problem.y_col_stride) * size, problem.dtype, values[i]);
  }
}

bool by_digits() { return isa() >= Isa::kAvx512Vnni; }
// Elements of W below which many rows are multiplied faster as floats: making their digits is not
// paid for. (Zen 4, 32 to 256 rows: of 64x64 digits take 1.4 to 1.7 of the time in fp32 and 1.1 to
// 1.4 in bf16, of 128x128 1.0 to 1.1 and 0.8, of 256x256 0.9 to 1.0 and 0.7.)
int64_t min_digit_weights(DType dtype) { return dtype == DType::kF32 ? 256 * 256 : 128 * 128; }

// Rows from which tiles are faster than digits.
constexpr int64_t kMinTileRows = 5;
// Of fewer elements of W, more than kStreamMaxRows are multiplied faster as floats. (Xeon, one
// thread, 32 to 256 rows in fp32: of 64x64 tiles take 1.25 to 1.5 of the time, of 64x128 0.94
// to 1.05.)
constexpr int64_t kMinTileWeights = 64 * 128;
// A batch-invariant product is one of digits at any number of rows.
bool by_tiles(const W4Problem& problem) {
  if (isa() != Isa::kAmx || problem.m < kMinTileRows || problem.batch_invariant) return false;
  const w4::Layout& layout = problem.weight.layout;
  return problem.m <= kStreamMaxRows || layout.n * layout.k >= kMinTileWeights;
}
// Bytes of parts of X that a core's L2 cache holds beside the weights.
constexpr int64_t kPartBytes = int64_t{5} << 18;
int64_t part_chunk(const W4Problem& problem) {
  const int64_t row = 2 * w4a16::parts_of(problem.dtype) * w4a16::padded_k(problem);
  return std::clamp<int64_t>(kPartBytes / row / w4a16::kPartRows, 1, 4) * w4a16::kPartRows;
}

void multiply(const W4Problem& problem, const RowBlock& block, int64_t column, int64_t strips,
              float* out) {
  const w4a16::StreamTask task{&problem.weight, &block, column, strips, out};
  isa() != Isa::kGeneric ? w4a16::stream_avx2(task) : w4a16::stream_generic(task);
}

void multiply(const W4Problem& problem, const DigitBlock& block, int64_t column, int64_t strips,
              float* out) {
  w4a16::stream_digits_avx512({&problem.weight, &block, column, strips, out});
}

void multiply(const W4Problem& problem, const PartBlock& block, int64_t column, int64_t strips,
              float* out) {
  w4a16::stream_tiles_amx({&problem.weight, &block, column, strips, out});
}

// Strips [first, last), all in one row of qweight, times the rows of X from `row` on.
template <typename Block, int kRows>
void stream_strips(const W4Problem& problem, const std::vector<Block>& blocks, int64_t row,
                   int64_t first, int64_t last) {
  const int64_t column = first * kColumns;
  const int64_t count = std::min(last * kColumns, problem.weight.layout.n) - column;
  for (const Block& block : blocks) {
    alignas(64) float out[kRows * w4::kRowColumns];
    multiply(problem, block, column, last - first, out);
    for (int slot = 0; slot < block.rows; ++slot, ++row) {
      float* const values = out + slot * w4::kRowColumns;
      if (!block.finite[slot]) {
        w4a16::multiply_non_finite(problem, row, column, (last - first) * kColumns, values);
      }
      store_row(problem, row, column, count, block.unscale[slot], values);
    }
  }
}

// A thread's strips, which lie one after the other in memory. A thread that is done with its own
// takes parts of the others': they may be slower, or not run at all for a while where processes
// share the cores.
struct alignas(64) Share {
  std::atomic<int64_t> next{0};
  int64_t end = 0;

  // The next strips, up to the end of a row of qweight; false where none are left.
  bool take(int64_t row_strips, Range& part) {
    part.begin = next.load(std::memory_order_relaxed);
    do {
      if (part.begin >= end) return false;
      part.end = std::min(end, round_up(part.begin + 1, row_strips));
    } while (!next.compare_exchange_weak(part.begin, part.end, std::memory_order_relaxed));
    return true;
  }
};

// All columns, times `count` rows of X from `row` on, cut between threads. arrange: called by each
// thread, gives the rows as it reads them, its own or those of all.
template <typename Block, int kRows, typename Arrange>
void stream_rows(const W4Problem& problem, const Arrange& arrange, int64_t row, int64_t count,
                 const Parallel& parallel) {
  const w4::Layout& layout = problem.weight.layout;
  constexpr int64_t kStripsPerRow = w4::kRowColumns / kColumns;
  const int64_t strips = ceil_div(layout.n, kColumns);
  constexpr bool kTiles = std::is_same_v<Block, PartBlock>;
  constexpr int64_t kGrain = kTiles ? 2 : 1;  // tiles take strips by pairs
  constexpr int64_t kPerTask = kTiles ? kTileProductsPerTask : kProductsPerTask;
  const int64_t work = (kTiles ? count + kDecodingRows : count) * layout.n * layout.k;
  const int64_t worthwhile = ceil_div(work + 1, kPerTask);
  const int64_t threads = std::min<int64_t>(parallel.num_threads(), worthwhile);
  const int64_t shares = std::min(threads, ceil_div(strips, kGrain));
  std::vector<Share> share(static_cast<size_t>(shares));
  for (int64_t i = 0; i < shares; ++i) {
    const Range range = split_range(strips, shares, i, kGrain);
    share[i].next.store(range.begin, std::memory_order_relaxed);
    share[i].end = range.end;
  }
  parallel.for_each(shares, [&](int64_t task) {
    const auto& rows = arrange();
    for (int64_t i = 0; i < shares; ++i) {
      Share& from = share[(task + i) % shares];
      for (Range part; from.take(kStripsPerRow, part);) {
        stream_strips<Block, kRows>(problem, rows.blocks(), row, part.begin, part.end);
      }
    }
  });
}

// As stream_rows. Where there is little of X each thread arranges all of it: what one writes and
// another reads goes from cache to cache line by line, and back when it is written again. (Zen 4,
// two threads, 1, 4 and 16 bf16 rows of 576x576, us: 6.7, 13.1, 42, with one arranging for
// both 8.5, 17.8, 57 while the cores were far from each other, and 4.4, 10.4, 37 to 4.6, 11.0, 39
// else.)
template <typename Block, int kRows, typename Rows>
void stream_arranged(const W4Problem& problem, int64_t row, int64_t count,
                     const Parallel& parallel) {
  if (count * w4a16::padded_k(problem) <= w4a16::kAloneElements) {
    const auto own = [&] { return Rows(problem, row, count, Parallel(1)); };
    return stream_rows<Block, kRows>(problem, own, row, count, parallel);
  }
  const Rows rows(problem, row, count, parallel);
  const auto shared = [&]() -> const Rows& { return rows; };
  stream_rows<Block, kRows>(problem, shared, row, count, parallel);
}

// Rows of a thread from which each decoding all weights costs less than sharing parts of X.
constexpr int64_t kRowsPerThread = 16;

// Columns are cut between threads, or rows where each gets enough of them: it makes the parts that
// it multiplies then, which lie in its own caches, and no thread waits for another's.
void stream_by_tiles(const W4Problem& problem, const Parallel& parallel) {
  const int64_t threads = parallel.num_threads();
  if (problem.m < kRowsPerThread * threads) {
    const int64_t chunk = part_chunk(problem);
    for (int64_t row = 0; row < problem.m; row += chunk) {
      const int64_t count = std::min(chunk, problem.m - row);
      const w4a16::RowParts rows(problem, row, count, parallel);
      const auto shared = [&]() -> const w4a16::RowParts& { return rows; };
      stream_rows<PartBlock, w4a16::kPartRows>(problem, shared, row, count, parallel);
    }
    return;
  }
  const int64_t blocks = round_up(ceil_div<int64_t>(problem.m, w4a16::kPartRows), threads);
  std::atomic<int64_t> next{0};
  parallel.for_each(threads, [&](int64_t) {
    const Parallel alone(1);
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < blocks;) {
      const Range range = split_range(problem.m, blocks, i);
      const int64_t count = range.end - range.begin;
      if (count == 0) continue;
      const auto own = [&] { return w4a16::RowParts(problem, range.begin, count, alone); };
      stream_rows<PartBlock, w4a16::kPartRows>(problem, own, range.begin, count, alone);
    }
  });
}

}  // namespace

bool w4a16_streams(const W4Problem& problem) {
  // The streaming kernel sums every row in one order for every m; the blocked driver need not agree
  // with it bit for bit, so a batch-invariant product always streams.
  if (problem.batch_invariant || problem.m <= kStreamMaxRows || by_tiles(problem)) return true;
  const w4::Layout& layout = problem.weight.layout;
  return by_digits() && layout.n * layout.k >= min_digit_weights(problem.dtype);
}

void w4a16_stream(const W4Problem& problem, const Parallel& parallel) {
  w4a16::check_perm(problem);
  const w4::Layout& layout = problem.weight.layout;
  if (problem.m == 0 || layout.n == 0) return;
  if (!by_digits()) {
    return stream_arranged<RowBlock, w4a16::kMaxRows, w4a16::RowBlocks>(problem, 0, problem.m,
                                                                        parallel);
  }
  if (by_tiles(problem)) return stream_by_tiles(problem, parallel);
  for (int64_t row = 0; row < problem.m; row += kDigitChunk) {
    const int64_t count = std::min(kDigitChunk, problem.m - row);
    stream_arranged<DigitBlock, w4a16::kDigitRows, w4a16::RowDigits>(problem, row, count, parallel);
  }
}

namespace {

std::string why(const W4Problem& problem) {
  const bool streams = w4a16_streams(problem);
  if (by_tiles(problem)) return "the CPU has amx and m >= " + std::to_string(kMinTileRows);
  if (by_digits() && streams) {
    return "the CPU has avx512_vnni: 64 products of a digit are one instruction";
  }
  const std::string most = std::to_string(kStreamMaxRows);
  if (!streams) return "m > " + most + ": one dequantization serves all rows";
  if (problem.batch_invariant) {
    return "batch_invariant is set: it sums a row in one order for every m";
  }
  return "m <= " + most + ": reading the weights costs more than the sums";
}

}  // namespace

std::string explain_w4a16(const W4Problem& problem, int num_threads) {
  const w4::Layout& layout = problem.weight.layout;
  std::ostringstream out;
  const char* instructions = isa() != Isa::kGeneric ? "avx2" : "generic";
  const int digits = w4a16::digits_of(problem.dtype);
  out << "w4a16 on the CPU: m=" << problem.m << " n=" << layout.n << " k=" << layout.k
      << " group_size=" << layout.group_size << " zeros=" << (layout.zeros ? "fp16" : "none (8)")
      << " scales=" << (problem.weight.bf16_scales ? "bfloat16" : "float16")
      << " x=" << name_of(problem.dtype) << " threads=" << num_threads << "\n";
  const bool streams = w4a16_streams(problem);
  if (by_tiles(problem)) {
    out << "kernel: tiles of bf16 (amx), x as " << w4a16::parts_of(problem.dtype)
        << " parts of bf16, up to " << w4a16::kPartRows << " rows share a decoding; ";
  } else if (streams && by_digits()) {
    out << "kernel: 8-bit dot products (" << name_of(isa()) << "), x as " << digits
        << " digits of 8 bits, up to " << w4a16::kDigitRows << " rows share a decoding; ";
  } else if (streams) {
    out << "kernel: stream (" << instructions << "), " << w4a16::kMaxRows
        << " rows of x share a conversion of the weights; ";
  } else {
    out << "kernel: blocked fp32 GEMM, weights dequantized (" << instructions
        << ") while its panels are packed; ";
  }
  out << "because " << why(problem);
  out << "\nreads " << layout.bytes() << " bytes of packed weights\n";
  return out.str();
}

std::string explain_w4a16_json(const W4Problem& problem, int num_threads) {
  const w4::Layout& layout = problem.weight.layout;
  JsonObject size, choice;
  size.add("m", problem.m)
      .add("n", layout.n)
      .add("k", layout.k)
      .add("dtype", name_of(problem.dtype))
      .add("group_size", layout.group_size)
      .add("zeros", layout.zeros)
      .add("bf16_scales", problem.weight.bf16_scales)
      .add("batch_invariant", problem.batch_invariant)
      .add("threads", num_threads);
  const char* instructions = isa() != Isa::kGeneric ? "avx2" : "generic";
  const bool streams = w4a16_streams(problem), digits = streams && by_digits();
  choice
      .add("kernel", by_tiles(problem) ? "tiles of bf16"
                     : digits          ? "8-bit dot products"
                     : streams         ? "stream"
                                       : "blocked")
      .add("isa", digits ? name_of(isa()) : instructions)
      .add("reason", why(problem));
  return rule_json("w4a16", size, choice);
}

}  // namespace xgemm::cpu
