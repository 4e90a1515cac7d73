// What the host tells the reduction kernels.
#pragma once

#include <cstdint>

#include "common/fast_divmod.h"
#include "common/reduction.h"

namespace xgemm::cuda::reduce {

// Taken of an element's bits before it is looked at: (bits & keep) ^ flip. It makes an absolute
// value, and turns the search for the smallest into one for the largest, and signed bytes into
// unsigned ones in the same order, which are unpacked faster. Of 8-byte elements the two words
// differ.
struct BitTransform {
  uint32_t keep_low = ~0u, keep_high = ~0u, flip_low = 0, flip_high = 0;
};

enum class Magnitude : uint8_t { kSquare, kAbsolute, kNonzero };

struct KeptDim {
  int64_t size, in_stride, out_stride;  // elements
};

// In the order of use: constants come from memory 64 bytes at a time, which takes 0.13 us each that
// a kernel of a few us waits for. `in` stands 16 bytes behind a multiple of 64.
struct Params {
  const void* in;
  int64_t extent;      // elements reduced into one output
  uint64_t l2_policy;  // of the loads of `in`
  FastDivmod pieces;   // of each tile: they are adjacent blocks
  int64_t row_stride;  // kept[0].in_stride

  void* out;
  BitTransform transform;
  uint32_t filler_low, filler_high;  // elements that change no result
  int64_t first_tile;                // of this launch
  uint32_t lanes;                    // a power of 2 up to 32
  int kept_count;
  double divisor;          // of the mean, else 1
  int64_t row_out_stride;  // kept[0].out_stride

  // Columns: the innermost kept dimension's size; it is kept's last entry, after kept_count others.
  // kept_inner divides a tile's number (columns) or a row's (short rows): the remainder counts
  // along the innermost kept dimension.
  FastDivmod kept_inner;
  bool one_shift;         // shifted columns: see has_one_shift
  bool one_dim;           // columns: the reduced extent is one dimension
  bool partial;           // columns: a second launch makes the results, even of one piece
  int64_t columns;        // of the innermost kept dimension
  int64_t inner_stride;   // elements; see `runs`
  uint32_t vectors;       // short rows: a power of 2; wrapped columns: periods of a block
  uint32_t row_loads;     // short rows: 16-byte loads that cover any of them; wrapped: of a period
  uint64_t nonce;         // of this launch's mail
  void* mail;             // [blocks][outputs of a tile] slots, where they meet in memory, or null
  uint32_t piece_blocks;  // of this launch; behind them are those that collect mail
  uint32_t collectors;    // of a tile
  int64_t outputs;        // of the whole problem

  static constexpr int kMaxKept = 4;
  KeptDim kept[kMaxKept];  // outermost first
  int64_t busy_threads;    // flat, thin columns: those that have outputs
  // The reduced extent as runs: element (outer, inner) at outer * outer_stride + inner *
  // inner_stride. Rows that are runs count `inner` in loads. Pieces: a piece has `inner` partial
  // results of each output.
  FastDivmod runs;
  Magnitude magnitude;   // what a norm adds up
  int64_t outer_stride;  // elements
  void* partials;        // [pieces][outputs] accumulators, where pieces meet in a second launch
  double p;              // order of the norm
};

// For the strided kernel, which takes any number of dimensions, and for runs.
struct StridedParams {
  Params base;
  int64_t piece_length;
  uint32_t run_length;  // runs: elements of one
  uint32_t row_loads;   // runs: of all of a row
  int kept_count, reduced_count;
  KeptDim kept[ReduceDims::kMaxDims];  // outermost first
  struct {
    FastDivmod divmod;  // of `size`, where extent is below 2^31
    int64_t size, stride;
  } reduced[ReduceDims::kMaxDims];  // outermost first
};
static_assert(sizeof(StridedParams) <= 4096, "what a kernel's parameters may take");

// For kernels that live for little more than their first load: all that it waits for is in one line
// of constants.
struct ElementsParams {  // short columns, warp columns
  const void* in;
  void* out;
  int64_t reduced_stride, kept_stride, kept_out_stride;
  uint32_t extent, outputs;
  Params base;
};
struct LoneRowsParams {  // and their pieces
  const void* in;
  void* out;
  int64_t row_stride, row_out_stride;
  uint64_t l2_policy;
  uint32_t extent;
  Params base;
};

}  // namespace xgemm::cuda::reduce
