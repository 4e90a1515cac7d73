// The columns of a tile of 64: where its halves begin, and how their sums become rows of y.
#pragma once

#include "cuda/tile/store_quad.cuh"
#include "cuda/w4a16/grouped/params.h"
#include "cuda/w4a16/grouped/rows.cuh"
#include "cuda/w4a16/grouped/tile.h"

namespace xgemm::cuda::w4a16::grouped {

// The two halves, 32 columns each, that a CTA computes: neighbours, or a gate and what it
// multiplies.
struct Halves {
  int64_t first, second;  // the columns at which they begin

  __device__ int64_t column(int half) const { return half == 0 ? first : second; }

  __device__ static Halves at(const Params& p, int block) {
    if (p.gated) return {block * 32, p.columns + block * 32};
    return {block * int64_t{kColumns}, block * int64_t{kColumns} + 32};
  }
};

__device__ inline const uint8_t* row_of_units(const Params& p, int expert, int64_t column) {
  return p.weight + expert * p.expert_bytes + column / kColumns * p.row_bytes;
}

template <typename T>
__device__ float bias_of(const Params& p, int expert, int64_t column) {
  return static_cast<float>(static_cast<const T*>(p.bias)[expert * p.n + column]);
}

// Four neighbouring columns of y, from their sums and, where there is a gate, what it multiplies.
template <typename T>
__device__ void finish_columns(const Params& p, const Halves& halves, int expert, int slot,
                               int column, float (&x)[4], const float (&up)[4]) {
  const int64_t first = halves.column(column / 32) + column % 32;  // of y, too
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool exists = p.bias != nullptr && first + i < p.n;
    if (exists) x[i] += bias_of<T>(p, expert, first + i);
    if (p.activation != Activation::kNone) x[i] = activate(p.activation, x[i]);
    if (p.gated) x[i] *= exists ? up[i] + bias_of<T>(p, expert, p.columns + first + i) : up[i];
  }
  T* y = static_cast<T*>(p.y) + slot * p.columns + first;
  store_quad<T>({.to = y, .stride = 1, .count = p.columns - first, .vector = p.y_vector}, x);
}

// Zeros, where slots have no expert.
template <typename T>
__device__ void clear_rows(const Params& p, const Halves& halves, const RowRange& rows,
                           int thread) {
  const int width = p.gated ? kColumns / 2 : kColumns;
  for (int i = thread; i < rows.count * width; i += kThreads) {
    const int slot = slot_at(p.sorted, p.experts, p.slots, rows.begin + i / width);
    const int64_t column = halves.first + i % width;
    if (slot >= 0 && column < p.columns) {
      static_cast<T*>(p.y)[slot * p.columns + column] = round_to<T>(0.0f);
    }
  }
}

}  // namespace xgemm::cuda::w4a16::grouped
