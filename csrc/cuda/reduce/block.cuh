// From the accumulators of a block's threads to results: across the block, or the pieces in memory.
// Every order is fixed, so results are the same bits in every run.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/reduce/mail.cuh"
#include "cuda/reduce/ops.cuh"
#include "cuda/reduce/params.h"
#include "cuda/reduce/problem.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::reduce {

template <typename V>
__device__ inline V shuffle_xor(V value, int mask) {
  static_assert(sizeof(V) % 4 == 0);
  uint32_t words[sizeof(V) / 4];
  memcpy(words, &value, sizeof(V));
#pragma unroll
  for (uint32_t& word : words) word = __shfl_xor_sync(~0u, word, mask);
  memcpy(&value, words, sizeof(V));
  return value;
}

// Which outputs and which piece of the reduced extent a block has; behind the last piece are the
// blocks that collect a tile's mail.
struct Place {
  int64_t tile;
  uint32_t piece;
};
__device__ inline Place place_of(const Params& p) {
  if (blockIdx.x >= p.piece_blocks) [[unlikely]] {
    const uint32_t at = blockIdx.x - p.piece_blocks, tile = at / p.collectors;
    return {p.first_tile + tile, p.pieces.divisor + at - tile * p.collectors};
  }
  uint32_t piece;
  const uint32_t tile = p.pieces.divide(blockIdx.x, &piece);
  return {p.first_tile + tile, piece};
}

struct Offsets {
  int64_t in, out;  // elements
};

// Out of the way of what most problems need.
__device__ __noinline__ inline Offsets offsets_in_many(const KeptDim* dims, int count,
                                                       int64_t index) {
  Offsets offsets = {0, 0};
#pragma unroll 1
  for (int d = count - 1; d >= 0; --d) {
    const int64_t size = dims[d].size;
    int64_t quotient;
    if ((index | size) >> 32 == 0) {
      quotient = static_cast<uint32_t>(index) / static_cast<uint32_t>(size);
    } else {
      quotient = index / size;
    }
    const int64_t at = index - quotient * size;
    offsets.in += at * dims[d].in_stride, offsets.out += at * dims[d].out_stride;
    index = quotient;
  }
  return offsets;
}

// Of the index-th combination of `count` dimensions.
__device__ inline Offsets kept_offsets(const KeptDim* dims, int count, int64_t index) {
  if (count > 1) return offsets_in_many(dims, count, index);
  if (count == 0) return {0, 0};
  return {index * dims[0].in_stride, index * dims[0].out_stride};
}

// `exists`: each of a block's rows of threads has other outputs, `by` places before the usual ones.
struct Shift {
  bool exists = false;
  int by = 0;
};

// kFinal: there are no pieces, or they have met. Thread t has outputs t % lanes * V and following.
template <typename Op, int V, bool kFinal, typename OutputOf>
__device__ inline void finish_block(const Params& p, uint32_t piece, typename Op::Acc (&acc)[V],
                                    int lanes, Shift shift, const OutputOf& output_of) {
  using Acc = typename Op::Acc;
  XGEMM_DYNAMIC_SHARED(char, raw, 16);
  constexpr int kPitch = accumulator_pitch(V);
  Acc* shared = reinterpret_cast<Acc*>(raw);
  // Threads that have the same outputs are adjacent in a warp, or `lanes` apart.
  const int thread = threadIdx.x, columns = lanes * V;
  const int span = shift.exists ? lanes : max(lanes, 32);
  const int existing = shift.exists ? columns - V : columns;
  const int groups = blockDim.x / span, log_span = __popc(span - 1);
  const auto slot_of = [=](int column) { return column / V * kPitch + column % V; };
  for (int mask = 16; mask >= lanes && !shift.exists; mask /= 2) {
#pragma unroll
    for (int i = 0; i < V; ++i) acc[i] = Op::combine(acc[i], shuffle_xor(acc[i], mask));
  }
  const int in_span = thread & (span - 1);
  if (in_span < lanes) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int column = in_span * V + i - shift.by;
      if (column >= 0) shared[(thread >> log_span) * lanes * kPitch + slot_of(column)] = acc[i];
    }
  }
  __syncthreads();
  const auto combine_groups = [&](int column) {
    Acc sum = Op::widen(Op::identity(), 0);
    if (column >= existing) return sum;
#pragma unroll 4
    for (int group = 0; group < groups; ++group) {
      sum = Op::combine(sum, shared[group * lanes * kPitch + slot_of(column)]);
    }
    return sum;
  };
  const auto store_result = [&](int column, Acc sum) {
    const int64_t output = column < existing ? output_of(column) : -1;
    if (output >= 0) static_cast<typename Op::Out*>(p.out)[output] = Op::finish(sum, p);
  };
  if (kFinal || (p.pieces.divisor == 1 && !p.partial)) {
    for (int i = thread; i < columns; i += blockDim.x) store_result(i, combine_groups(i));
    return;
  }
  if constexpr (!kFinal) {
    if (p.mail != nullptr) {
      const uint32_t last = p.pieces.divisor - 1;
      const Mail<Acc> mail(p, blockIdx.x - piece, columns);
      if (piece != last || p.collectors != 0) {
        for (int i = thread; i < columns; i += blockDim.x) mail.send(piece, i, combine_groups(i));
        return;
      }
      const int column = thread & (columns - 1), first = thread >> __popc(columns - 1);
      Acc met[1] = {first == 0 ? combine_groups(column) : Op::widen(Op::identity(), 0)};
      mail.receive(first, blockDim.x >> __popc(columns - 1), last, column,
                   [&](const Acc& acc) { met[0] = Op::combine(met[0], acc); });
      __syncthreads();  // shared memory is used again
      finish_block<Op, 1, true>(p, 0, met, columns, {},
                                [&](int i) { return i < existing ? output_of(i) : int64_t{-1}; });
      return;
    }
  }
  Acc* partials = static_cast<Acc*>(p.partials) + piece * p.outputs;
  for (int i = thread; i < columns; i += blockDim.x) {
    const int64_t output = i < existing ? output_of(i) : -1;
    if (output >= 0) partials[output] = combine_groups(i);
  }
}

// A block's share of a tile's `columns` outputs, whose pieces are all in the mail. It has nothing
// else to do, so it waits for blocks only that were started before it.
template <typename Op, typename OutputOf>
__device__ inline void collect_mail(const Params& p, const Place& place, uint32_t columns,
                                    const OutputOf& output_of) {
  const uint32_t share = columns / p.collectors;  // powers of 2
  const uint32_t first_column = (place.piece - p.pieces.divisor) * share;
  const auto tile = static_cast<uint32_t>(place.tile - p.first_tile);
  const Mail<typename Op::Acc> mail(p, tile * p.pieces.divisor, columns);
  typename Op::Acc met[1] = {Op::widen(Op::identity(), 0)};
  mail.receive(threadIdx.x >> __popc(share - 1), blockDim.x >> __popc(share - 1), p.pieces.divisor,
               first_column + (threadIdx.x & (share - 1)),
               [&](const typename Op::Acc& acc) { met[0] = Op::combine(met[0], acc); });
  finish_block<Op, 1, true>(p, 0, met, static_cast<int>(share), {},
                            [&](int i) { return output_of(static_cast<int>(first_column) + i); });
}

// Combines the partial results that lie in memory, [pieces][outputs][those of an output]. Thread t
// has output t % lanes of the block's tile.
template <typename Op>
__global__ void __launch_bounds__(512) pieces_kernel(const __grid_constant__ Params p) {
  using Acc = typename Op::Acc;
  const int lanes = p.lanes, log_lanes = __popc(p.lanes - 1), rows = blockDim.x >> log_lanes;
  const int64_t first = (p.first_tile + blockIdx.x) * lanes;
  const int64_t output = first + (threadIdx.x & (lanes - 1));
  Acc acc[1] = {Op::widen(Op::identity(), 0)};
  if (output < p.outputs) {
    const uint32_t of_piece = p.runs.divisor, count = p.pieces.divisor * of_piece;
    const Acc* partials = static_cast<const Acc*>(p.partials) + output * of_piece;
#pragma unroll 8
    for (uint32_t at = threadIdx.x >> log_lanes; at < count; at += rows) {
      uint32_t inner;
      const int64_t piece = p.runs.divide(at, &inner);
      acc[0] = Op::combine(acc[0], partials[piece * of_piece * p.outputs + inner]);
    }
  }
  finish_block<Op, 1, true>(p, 0, acc, lanes, {}, [&](int column) {
    return first + column < p.outputs ? first + column : int64_t{-1};
  });
}

}  // namespace xgemm::cuda::reduce
