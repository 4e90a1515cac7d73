// Few rows of X: which problems stream, how they are cut between threads, and the epilogue.
#include "cpu/w4a16/stream.h"

#include <algorithm>
#include <sstream>

#include "cpu/isa/convert.h"
#include "cpu/isa/isa.h"
#include "cpu/w4a16/api.h"
#include "cpu/w4a16/dequant.h"
#include "cpu/w4a16/rows.h"

namespace xgemm::cpu {
namespace {

using w4a16::kColumns;
using w4a16::RowBlock;

// From here on the blocked driver, which dequantizes once for all rows, is faster.
constexpr int64_t kStreamMaxRows = 16;

// Products of a weight and an activation below which waking another thread costs more than it
// saves.
constexpr int64_t kProductsPerTask = 1 << 17;

// Columns [column, column + count) of a row of Y.
void store_row(const W4Problem& problem, int64_t row, int64_t column, int64_t count, float unscale,
               float* values) {
  const int64_t size = element_size(problem.dtype);
  const auto* bias = static_cast<const char*>(problem.bias);
  auto* y = static_cast<char*>(problem.y);
  for (int64_t i = 0; i < count; ++i) values[i] *= unscale;
  if (problem.bias != nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      values[i] += load_float(bias + (column + i) * problem.bias_stride * size, problem.dtype);
    }
  }
  if (problem.activation != Activation::kNone) {
    for (int64_t i = 0; i < count; ++i) values[i] = activate(problem.activation, values[i]);
  }
  const int64_t base = row * problem.y_row_stride + column * problem.y_col_stride;
  for (int64_t i = 0; i < count; ++i) {
    store_float(y + (base + i * problem.y_col_stride) * size, problem.dtype, values[i]);
  }
}

// Strips [first, last), all in one row of qweight, times every row of X.
void stream_strips(const W4Problem& problem, const w4a16::RowBlocks& rows, int64_t first,
                   int64_t last) {
  const int64_t column = first * kColumns;
  const int64_t count = std::min(last * kColumns, problem.weight.layout.n) - column;
  int64_t row = 0;
  for (const RowBlock& block : rows.blocks()) {
    alignas(64) float out[w4a16::kMaxRows * w4::kRowColumns];
    const w4a16::StreamTask task{&problem.weight, &block, column, last - first, out};
    isa() != Isa::kGeneric ? w4a16::stream_avx2(task) : w4a16::stream_generic(task);
    for (int slot = 0; slot < block.rows; ++slot, ++row) {
      float* const values = out + slot * w4::kRowColumns;
      if (!block.finite[slot]) {
        w4a16::multiply_non_finite(problem, row, column, (last - first) * kColumns, values);
      }
      store_row(problem, row, column, count, block.unscale[slot], values);
    }
  }
}

}  // namespace

bool w4a16_streams(const W4Problem& problem) {
  // The streaming kernel sums every row in one order for every m; the blocked driver need not agree
  // with it bit for bit, so a batch-invariant product always streams.
  return problem.batch_invariant || problem.m <= kStreamMaxRows;
}

void w4a16_stream(const W4Problem& problem, const Parallel& parallel) {
  w4a16::check_perm(problem);
  const w4::Layout& layout = problem.weight.layout;
  if (problem.m == 0 || layout.n == 0) return;
  const w4a16::RowBlocks rows(problem, parallel);
  constexpr int64_t kStripsPerRow = w4::kRowColumns / kColumns;
  const int64_t strips = ceil_div(layout.n, kColumns);
  // Whole rows of qweight, read front to back, where there are enough of them to share out evenly.
  const int64_t worthwhile = ceil_div(problem.m * layout.n * layout.k + 1, kProductsPerTask);
  const int64_t parts =
      parallel.num_threads() == 1 ? 1 : std::min<int64_t>(4 * parallel.num_threads(), worthwhile);
  const int64_t grain = layout.rows() >= 4 * parts ? kStripsPerRow : 1;
  const int64_t tasks = std::min(parts, ceil_div(strips, grain));
  parallel.for_each(tasks, [&](int64_t i) {
    const Range range = split_range(strips, tasks, i, grain);
    for (int64_t first = range.begin; first < range.end;) {
      const int64_t last = std::min(range.end, round_up(first + 1, kStripsPerRow));
      stream_strips(problem, rows, first, last);
      first = last;
    }
  });
}

std::string explain_w4a16(const W4Problem& problem, int num_threads) {
  const w4::Layout& layout = problem.weight.layout;
  std::ostringstream out;
  const char* instructions = isa() != Isa::kGeneric ? "avx2" : "generic";
  out << "w4a16 on the CPU: m=" << problem.m << " n=" << layout.n << " k=" << layout.k
      << " group_size=" << layout.group_size << " zeros=" << (layout.zeros ? "fp16" : "none (8)")
      << " scales=" << (problem.weight.bf16_scales ? "bfloat16" : "float16")
      << " x=" << name_of(problem.dtype) << " threads=" << num_threads << "\n";
  if (w4a16_streams(problem)) {
    out << "kernel: stream (" << instructions << "), " << w4a16::kMaxRows
        << " rows of x share a conversion of the weights; ";
    if (problem.batch_invariant) {
      out << "because batch_invariant is set: it sums a row in one order for every m";
    } else {
      out << "because m <= " << kStreamMaxRows << ": reading the weights costs more than the sums";
    }
  } else {
    out << "kernel: blocked fp32 GEMM, weights dequantized (" << instructions
        << ") while its panels are packed; because m > " << kStreamMaxRows
        << ": one dequantization serves all rows";
  }
  out << "\nreads " << layout.bytes() << " bytes of packed weights\n";
  return out.str();
}

}  // namespace xgemm::cpu
