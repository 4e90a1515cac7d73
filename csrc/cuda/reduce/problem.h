// A reduction on a GPU, and the kernel it gets. Nothing here needs the CUDA toolkit.
#pragma once

#include <cstdint>

#include "common/reduction.h"

namespace xgemm::cuda::reduce {

// The problem's dimensions merged: each set has at least one.
struct Plan {
  ReduceDims kept, reduced;
  int64_t outputs = 1;  // product of kept
  int64_t extent = 1;   // product of reduced
};

enum class Kernel : int8_t {
  kShortRows,     // a row by one lane, several or a warp; several rows a warp
  kRaggedRows,    // the same of any length and at any alignment
  kTeamRows,      // a row by 8, 16 or 32 lanes, at any alignment
  kLoneRows,      // a row by a block, a few loads a thread
  kRowPieces,     // a row by a cluster, a few loads a thread (sm_90)
  kRows,          // a row, or a piece of one, by a block
  kRuns,          // the same of rows that are several runs of contiguous elements each
  kColumns,       // 16 bytes of adjacent outputs by a thread
  kShifted,       // the same at any alignment, and of rows in two dimensions
  kFlat,          // the same where a thread has all of its columns
  kThin,          // the same of a column each, element by element
  kShortColumns,  // the same of up to 8 rows, in one dimension each
  kWarpColumns,   // 32 columns by a block, a warp each some rows, element by element
  kWrapped,       // few columns: their rows are read as one run
  kStrided,       // any strides, element by element
  kCopy,          // one element for each output, which is the result, or whose position is 0
};

// Whose tiles may have blocks beside them that collect their mail.
constexpr bool collects(Kernel kernel) {
  return kernel == Kernel::kColumns || kernel == Kernel::kShifted || kernel == Kernel::kWrapped;
}
// Element by element, so that neither alignment nor the strides of columns matter.
constexpr bool of_elements(Kernel kernel) {
  return kernel == Kernel::kThin || kernel == Kernel::kShortColumns ||
         kernel == Kernel::kWarpColumns;
}
constexpr bool of_columns(Kernel kernel) {
  return kernel == Kernel::kColumns || kernel == Kernel::kShifted || kernel == Kernel::kWrapped ||
         kernel == Kernel::kFlat || of_elements(kernel);
}

struct Config {
  Kernel kernel = Kernel::kStrided;
  int threads = 256;      // of a block
  int lanes = 1;          // threads along a row (short rows), or along a tile's outputs
  int vectors = 1;        // of a row (short rows) that a lane takes at once; wrapped: periods
  int64_t tiles = 0;      // of outputs: one for each block, or for each of its pieces
  int64_t row_loads = 0;  // short rows, runs: 16-byte loads that cover any; wrapped: of a period
  int64_t pieces = 1;     // of the reduced extent
  int cluster = 1;        // row pieces: all, which meet in a cluster
  bool mail = false;      // they meet there in the same launch, and not in a second one
  int collectors = 0;   // mail: blocks more that share a tile's outputs; 0: its last piece has them
  bool streams = true;  // L2 drops what was read first, and keeps what else it holds
  bool one_shift = false;  // shifted columns: see has_one_shift
  int group = 1;  // adjacent columns that are one output, which a second launch brings together
  int64_t workspace_bytes = 0;
  const char* reason = "";
};

// What is accumulated; the rest of an op are parameters.
enum class Kind : int8_t {
  kSum,      // sum, mean
  kSquares,  // norms of order 2, 1 and 0
  kPowers,   // norms of any other finite order
  kExtreme,  // amax, amin, norms of order inf and -inf
  kProd,
  kArg,  // argmax, argmin
};
Kind kind_of(const ReduceProblem& problem);

// Elements are compared, and their bits transformed for that (BitTransform).
constexpr bool is_ordered(Kind kind) { return kind == Kind::kExtreme || kind == Kind::kArg; }

// Kinds that are rare have five kernels: team rows, rows, shifted and thin columns, strided.
constexpr bool few_kernels(Kind kind, DType dtype) {
  return kind == Kind::kPowers || (kind == Kind::kProd && !is_floating(dtype));
}
// Whether an Op's Lane (ops.cuh) is a 32-bit number.
constexpr bool four_byte_lanes(Kind kind, DType dtype) {
  if (kind == Kind::kSquares) return dtype == DType::kF16;
  if (kind == Kind::kSum) return is_floating(dtype) && element_size(dtype) < 8;
  return kind == Kind::kExtreme && element_size(dtype) < 8;
}
// Lone rows, row pieces, short columns and warp columns are compiled for these only: of others few
// are small.
constexpr bool has_small(Kind kind, DType dtype) {
  return four_byte_lanes(kind, dtype) &&
         (dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32);
}

// Of larger elements a thread for each column is faster.
constexpr bool has_flat(DType dtype) { return element_size(dtype) < 4; }

// Elements, or rows, that a thread loads before it uses the first.
constexpr int in_flight(Kernel kernel, Kind kind, DType dtype) {
  if (kind == Kind::kPowers && kernel == Kernel::kStrided) return 2;
  const bool powers_of_rows = kind == Kind::kPowers && !of_columns(kernel);
  return element_size(dtype) == 1 || kernel == Kernel::kFlat || powers_of_rows ? 4 : 8;
}

// Whether threads that have all rows of their columns store those results, of so many bytes, at
// once: of more, what neighbours store lies too far apart.
constexpr bool stores_lanes(int64_t result_bytes) { return result_bytes <= 64; }

// Products of bf16 in tiles of columns end in the ways that take the fewest registers: with 86 for
// 80 one block less fits an SM.
constexpr bool is_tight(Kind kind, DType dtype) {
  return kind == Kind::kProd && dtype == DType::kBF16;
}

constexpr int kMaxShortColumnRows = 8, kWarpColumnsThreads = 512;
constexpr int kMaxThreadsOfElements = 256;            // of a block of flat, thin and short columns
constexpr int kLoneRowLoads = 4, kRowPieceLoads = 8;  // of a thread
constexpr int kMaxRowWarps = 16;                      // of a block that has a row
constexpr int kMaxCluster = 8;                        // what every GPU with clusters has

// Short rows: how many a warp has.
constexpr int64_t rows_of_warp(const Config& config, int batch) {
  return batch / config.vectors * (32 / config.lanes);
}

// In shared memory a thread's accumulators lie this many apart: an odd number, so that neighbours
// use other banks.
constexpr int accumulator_pitch(int of_thread) { return of_thread == 1 ? 1 : of_thread + 1; }
constexpr int64_t accumulator_bytes(Kind kind) { return kind == Kind::kArg ? 16 : 8; }
// Outputs that a thread has when its block's accumulators meet.
constexpr int outputs_of_thread(Kernel kernel, DType dtype) {
  return of_columns(kernel) && kernel != Kernel::kWrapped ? 16 / element_size(dtype) : 1;
}
// Dynamic shared memory of a block.
constexpr int64_t shared_bytes(const Config& config, Kind kind, DType dtype) {
  if (config.kernel == Kernel::kRowPieces) return 16 + 8 * kMaxCluster * kMaxRowWarps;
  const int of_thread = outputs_of_thread(config.kernel, dtype);
  const int span = config.lanes < 32 && !config.one_shift ? 32 : config.lanes;
  const int64_t meeting = accumulator_bytes(kind) * (config.threads / span) * config.lanes *
                          accumulator_pitch(of_thread);
  if (config.kernel != Kernel::kWrapped) return meeting;
  const int64_t before = accumulator_bytes(kind) * config.threads *
                         accumulator_pitch(static_cast<int>(16 / element_size(dtype)));
  return meeting > before ? meeting : before;
}

// Shifted columns: whether all rows of a thread are equally far from a multiple of 16 bytes. Then
// it loads such multiples, which hold other columns in each row of threads, and a tile has 16 bytes
// of columns less than it has lanes. It takes longer at the end: not worth it for one row each.
constexpr bool has_one_shift(const Config& config, const Plan& plan, int vector) {
  const int rows = config.threads / config.lanes;
  return config.kernel == Kernel::kShifted && plan.reduced.count == 1 && config.lanes >= 4 &&
         plan.extent > rows && rows * plan.reduced.dims[0].in_stride % vector == 0;
}
constexpr int tile_columns(const Config& config, int vector) {
  return (config.one_shift ? config.lanes - 1 : config.lanes) * vector;
}

// Of the memory where a configuration's pieces meet: in a slot of mail 8 bytes travel with a nonce.
inline int64_t workspace_bytes(const ReduceProblem& problem, const Plan& plan,
                               const Config& config) {
  if (config.pieces <= config.cluster && config.group == 1) return 0;
  const int64_t of_piece = accumulator_bytes(kind_of(problem));
  if (!config.mail) return config.pieces * plan.outputs * config.group * of_piece;
  const int of_thread = outputs_of_thread(config.kernel, problem.in_dtype);
  return config.tiles * config.pieces * config.lanes * of_thread * 2 * of_piece;
}

}  // namespace xgemm::cuda::reduce
