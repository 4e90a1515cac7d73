// Few columns: rows that lie one behind the other, however short and at any alignment, are read as
// one run of 16-byte loads. What a load holds of which column repeats every `period` loads, so a
// thread that moves on by multiples of it keeps its columns.
#pragma once

#include "cuda/reduce/columns.cuh"

namespace xgemm::cuda::reduce {

// Folds elements from, from + 1, ... below `to` of 16 bytes, each into its own lane.
template <typename Op>
__device__ inline void fold_some(const Params& p, uint4 v, int from, int to,
                                 typename Op::Lane (&lanes)[kVector<typename Op::Element>]) {
  using T = typename Op::Element;
  Number<T> x[kVector<T>];
  unpack_vector<T, Op::kTransforms>(p.transform, v, x);
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) {
    const Number<T> one[1] = {x[i]};
    if (i >= from && i < to) lanes[i] = take<Op>(p, lanes[i], one, 0, 1);
  }
}

// Of `period` lanes, from those next to each other to those that have a column each: combines what
// the block's threads have of a column. `head` elements stand before the first lane's.
template <typename Op>
__device__ inline typename Op::Acc meet_periods(
    const Params& p, uint32_t period, uint32_t periods, uint32_t head,
    const typename Op::Lane (&lanes)[kVector<typename Op::Element>]) {
  using Lane = typename Op::Lane;
  constexpr int V = kVector<typename Op::Element>, kPitch = accumulator_pitch(V);
  XGEMM_DYNAMIC_SHARED(char, raw, 16);
  auto* shared = reinterpret_cast<Lane*>(raw);
  if (threadIdx.x < period * periods) {
#pragma unroll
    for (int i = 0; i < V; ++i) shared[threadIdx.x * kPitch + i] = lanes[i];
  }
  __syncthreads();
  const uint32_t column = threadIdx.x & (p.lanes - 1), share = threadIdx.x >> __popc(p.lanes - 1);
  const auto stride = static_cast<uint32_t>(p.inner_stride);  // of rows
  const uint32_t rows = period * V / stride;                  // of a period: a power of 2
  const uint32_t first = (column + stride - head % stride) % stride;
  typename Op::Acc acc = Op::widen(Op::identity(), 0);
  if (column < p.columns) {
    for (uint32_t job = share; job < rows * periods; job += blockDim.x >> __popc(p.lanes - 1)) {
      const uint32_t of_period = job >> __popc(rows - 1);
      const uint32_t at = first + (job & (rows - 1)) * stride;
      acc = Op::combine(acc, Op::widen(shared[(of_period * period + at / V) * kPitch + at % V], 0));
    }
  }
  __syncthreads();  // shared memory is used again
  return acc;
}

template <typename Op>
__global__ void __launch_bounds__(512, sizeof(typename Op::Lane) == 4 ? 2 : 1)
    wrapped_columns_kernel(const __grid_constant__ Params p) {
  using T = typename Op::Element;
  constexpr uint32_t V = kVector<T>;
  constexpr int U = sizeof(T) == 1 ? 4 : 8;  // loads in flight
  const Place place = place_of(p);
  const Offsets offsets = kept_offsets(p.kept, p.kept_count, place.tile);
  const auto output_of = [&](int column) {
    return column < p.columns ? offsets.out + column * p.kept[Params::kMaxKept - 1].out_stride
                              : int64_t{-1};
  };
  if (place.piece >= p.pieces.divisor) [[unlikely]] {
    collect_mail<Op>(p, place, p.lanes, output_of);
    return;
  }
  // Whole vectors are those behind `head` elements; what follows them is less than one.
  const T* in = static_cast<const T*>(p.in) + offsets.in;
  const auto skip = static_cast<uint32_t>((reinterpret_cast<uintptr_t>(in) & 15) / sizeof(T));
  const uint32_t head = (V - skip) % V;
  const auto whole = static_cast<uint32_t>((p.extent - head) / V);  // below 2^31
  const auto tail = static_cast<uint32_t>(p.extent - head) % V;
  const T* vectors = in + head;
  const uint32_t period = p.row_loads, periods = p.vectors, threads = period * periods;
  const auto load = [&](int64_t v) {
    return ptx::ld_global_nc_no_allocate(vectors + v * V, p.l2_policy);
  };

  typename Op::Lane lanes[V];
#pragma unroll
  for (auto& lane : lanes) lane = Op::identity();
  if (threadIdx.x < threads) {
    // The vector before the first whole one has the last lane's columns.
    if (place.piece == 0 && threadIdx.x == period - 1 && head != 0) {
      fold_some<Op>(p, load(-1), static_cast<int>(skip), V, lanes);
    }
    if (place.piece == 0 && threadIdx.x == threads - period + whole % period && tail != 0) {
      fold_some<Op>(p, load(whole), 0, static_cast<int>(tail), lanes);
    }
    const uint32_t step = p.pieces.divisor * (threads * U);
    uint32_t v = place.piece * (threads * U) + threadIdx.x;
#pragma unroll 1
    for (; v + (U - 1) * threads < whole; v += step) {
      uint4 x[U];
#pragma unroll
      for (int i = 0; i < U; ++i) x[i] = load(v + i * threads);
      fold_rows<Op>(p, x, 0, 1, lanes);
    }
    if (v < whole) {  // fewer than a batch, still all loaded before the first is used
      uint4 x[U];
#pragma unroll
      for (int i = 0; i < U; ++i) {
        x[i] = {p.filler_low, p.filler_high, p.filler_low, p.filler_high};
        if (v + i * threads < whole) x[i] = load(v + i * threads);
      }
      fold_rows<Op>(p, x, 0, 1, lanes);
    }
  }
  typename Op::Acc acc[1] = {meet_periods<Op>(p, period, periods, head, lanes)};
  finish_block<Op, 1, false>(p, place.piece, acc, p.lanes, {}, output_of);
}

}  // namespace xgemm::cuda::reduce
