// Adjacent outputs whose elements are adjacent, too: a thread takes 16 bytes of columns, of several
// rows at once. Base and strides are multiples of 16 bytes and the rows are one dimension, or else
// (kShifted) there may be two dimensions, and every row is shifted into place from two loads; but
// where a thread's rows are all as far from a multiple of 16 bytes (one_shift), it loads what lies
// there, and its accumulators are shifted once, at the end.
//
// A block has `lanes` threads along a row, and its other threads take other rows; its pieces take
// turns, a batch of rows each.
#pragma once

#include "cuda/reduce/block.cuh"

namespace xgemm::cuda::reduce {

// Folds kRows rows, `rows[i]` standing at position first + i * step, into their columns' lanes.
template <typename Op, int kRows>
__device__ inline void fold_rows(const Params& p, uint4 (&rows)[kRows], uint32_t first,
                                 uint32_t step,
                                 typename Op::Lane (&lanes)[kVector<typename Op::Element>]) {
  using T = typename Op::Element;
  constexpr int kWords = kCellWords<T>, kElements = kCellElements<T>;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    transform_words<Op::kTransforms>(p.transform, rows[row].x, rows[row].y);
    transform_words<Op::kTransforms>(p.transform, rows[row].z, rows[row].w);
  }
  if constexpr (requires { requires kRows > 1 && Op::kHasPairs; }) {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint32_t pairs[kRows];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const uint32_t words[4] = {rows[row].x, rows[row].y, rows[row].z, rows[row].w};
        pairs[row] = words[word];
      }
      Op::take_pairs(lanes[2 * word], lanes[2 * word + 1], pairs, first, step);
    }
  } else {
#pragma unroll
    for (int cell = 0; cell < kCells<T>; ++cell) {
      Number<T> columns[kElements][kRows];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const uint32_t words[4] = {rows[row].x, rows[row].y, rows[row].z, rows[row].w};
        Number<T> part[kElements];
        unpack_cell<T>(words + cell * kWords, part);
#pragma unroll
        for (int i = 0; i < kElements; ++i) columns[i][row] = part[i];
      }
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        typename Op::Lane& lane = lanes[cell * kElements + i];
        lane = take<Op>(p, lane, columns[i], first, step);
      }
    }
  }
}

// The 16 bytes from `pointer` on, at any alignment, of which the first `count` are wanted. It reads
// aligned 16 bytes that hold some of those: no allocation ends inside of them.
__device__ inline uint4 load_shifted(const void* pointer, uint32_t count, uint64_t policy) {
  const uint32_t shift = reinterpret_cast<uintptr_t>(pointer) & 15;
  const char* aligned = static_cast<const char*>(pointer) - shift;
  const uint4 low =
      ptx::ld_global_nc(aligned, policy);  // through L1: the neighbours want the same bytes
  uint4 high = {0, 0, 0, 0};
  if (shift + count > 16) high = ptx::ld_global_nc(aligned + 16, policy);
  const bool by8 = shift & 8, by4 = shift & 4;
  const uint32_t a0 = by8 ? low.z : low.x, a1 = by8 ? low.w : low.y;
  const uint32_t a2 = by8 ? high.x : low.z, a3 = by8 ? high.y : low.w;
  const uint32_t a4 = by8 ? high.z : high.x, a5 = by8 ? high.w : high.y;
  const uint32_t b0 = by4 ? a1 : a0, b1 = by4 ? a2 : a1, b2 = by4 ? a3 : a2;
  const uint32_t b3 = by4 ? a4 : a3, b4 = by4 ? a5 : a4, bits = (shift & 3) * 8;
  return {__funnelshift_r(b0, b1, bits), __funnelshift_r(b1, b2, bits),
          __funnelshift_r(b2, b3, bits), __funnelshift_r(b3, b4, bits)};
}

// The results of the lanes of adjacent columns, of which the first `count` exist; at once where
// they lie so.
template <typename Op>
__device__ inline void store_lanes(
    const Params& p, typename Op::Out* out, int64_t stride, int count,
    const typename Op::Lane (&lanes)[kVector<typename Op::Element>]) {
  constexpr int V = kVector<typename Op::Element>;
  alignas(16) typename Op::Out results[V];
#pragma unroll
  for (int i = 0; i < V; ++i) results[i] = Op::finish_lane(lanes[i], p);
  if (count >= V && stride == 1 && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(results) / 16); ++i) {
      uint4 words;
      memcpy(&words, reinterpret_cast<const char*>(results) + 16 * i, 16);
      reinterpret_cast<uint4*>(out)[i] = words;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < count) out[i * stride] = results[i];
  }
}

template <typename Op>  // is_tight
inline constexpr bool kTight = std::is_same_v<Op, Prod<__nv_bfloat16>>;

template <typename Op, bool kShifted>
__global__ void __launch_bounds__(512, 1) columns_kernel(const __grid_constant__ Params p) {
  using T = typename Op::Element;
  constexpr int V = kVector<T>, U = sizeof(T) == 1 ? 4 : 8;  // rows in flight
  const Place place = place_of(p);
  const uint32_t lanes = p.lanes, log_lanes = __popc(lanes - 1), rows = blockDim.x >> log_lanes;
  uint32_t tile_inner;
  const uint32_t tile_outer =
      p.kept_inner.divide(static_cast<uint32_t>(place.tile), &tile_inner);  // below 2^31
  const bool one_shift = kShifted && p.one_shift;
  const int64_t first_column = int64_t{tile_inner} * ((one_shift ? lanes - 1 : lanes) * V);
  const Offsets offsets = kept_offsets(p.kept, p.kept_count, tile_outer);
  const auto output_of = [&](int i) {
    const int64_t at = first_column + i;
    const bool exists = at < p.columns && !(one_shift && i >= static_cast<int>((lanes - 1) * V));
    return exists ? offsets.out + at * p.kept[Params::kMaxKept - 1].out_stride : -1;
  };
  if (place.piece >= p.pieces.divisor) [[unlikely]] {
    collect_mail<Op>(p, place, lanes * V, output_of);
    return;
  }
  const int64_t column = first_column + (threadIdx.x & (lanes - 1)) * V;
  uint32_t row = place.piece * (rows * U) + (threadIdx.x >> log_lanes);
  const T* in = static_cast<const T*>(p.in) + offsets.in + column;
  uint32_t skip = 0;  // elements from what is loaded to `column`
  if (one_shift) {
    skip = (reinterpret_cast<uintptr_t>(in + row * p.inner_stride) & 15) / sizeof(T);
    in -= skip;
  }
  const auto wanted =
      static_cast<uint32_t>(min(p.columns - column, int64_t{V}) * sizeof(T));  // bytes
  // The i-th of a batch that starts at `row`.
  const auto load = [&](uint32_t row, int i) {
    if (!kShifted || one_shift) {
      const int64_t step = rows * p.inner_stride;
      return ptx::ld_global_nc_no_allocate(in + row * p.inner_stride + i * step, p.l2_policy);
    }
    uint32_t inner;
    const uint32_t outer = p.runs.divide(row + i * rows, &inner);
    return load_shifted(in + outer * p.outer_stride + inner * p.inner_stride, wanted, p.l2_policy);
  };

  typename Op::Lane best[V];
#pragma unroll
  for (int i = 0; i < V; ++i) best[i] = Op::identity();
  const uint32_t end = column < p.columns + skip ? static_cast<uint32_t>(p.extent) : 0;  // < 2^31
  const uint32_t step = p.pieces.divisor * (rows * U);
#pragma unroll 1
  for (; row + (U - 1) * rows < end; row += step) {
    uint4 x[U];
#pragma unroll
    for (int i = 0; i < U; ++i) x[i] = load(row, i);
    fold_rows<Op>(p, x, row, rows, best);
  }
  if (row < end) {  // fewer than a batch, whose halves are filled up: less to do than row by row
    uint4 x[U];
#pragma unroll
    for (int i = 0; i < U; ++i) {
      x[i] = {p.filler_low, p.filler_high, p.filler_low, p.filler_high};
      if (row + i * rows < end) x[i] = load(row, i);
    }
    constexpr int kPart = kTight<Op> ? 1 : U / 2;
    uint4 parts[U / kPart][kPart];
    memcpy(parts, x, sizeof(x));
#pragma unroll
    for (int i = 0; i < U / kPart; ++i) {
      if (row + i * kPart * rows < end) {
        fold_rows<Op>(p, parts[i], row + i * kPart * rows, rows, best);
      }
    }
  }
  if constexpr (!kTight<Op> && stores_lanes(V * sizeof(typename Op::Out))) {
    if (rows == 1 && p.pieces.divisor == 1 && !one_shift && !p.partial) {  // nothing meets
      const KeptDim& kept = p.kept[Params::kMaxKept - 1];
      auto* out = static_cast<typename Op::Out*>(p.out) + offsets.out + column * kept.out_stride;
      const auto count = static_cast<int>(min(p.columns - column, int64_t{V}));
      store_lanes<Op>(p, out, kept.out_stride, count, best);
      return;
    }
  }
  typename Op::Acc acc[V];
#pragma unroll
  for (int i = 0; i < V; ++i) acc[i] = Op::widen(best[i], 0);
  const Shift shift = {one_shift, static_cast<int>(skip)};
  finish_block<Op, V, false>(p, place.piece, acc, lanes, shift, output_of);
}

// The same where columns are short and many: each thread has all rows of its 16 bytes of columns,
// counted through all tiles, and what it ends with is the result.
template <typename Op>
__global__ void __launch_bounds__(256, 3) flat_columns_kernel(const __grid_constant__ Params p) {
  using T = typename Op::Element;
  constexpr int V = kVector<T>, U = 4;  // rows in flight
  const int64_t vector = (p.first_tile + blockIdx.x) * blockDim.x + threadIdx.x;
  if (vector >= p.busy_threads) return;  // below 2^31
  uint32_t inner_vector;
  const uint32_t outer = p.kept_inner.divide(static_cast<uint32_t>(vector), &inner_vector);
  const Offsets offsets = kept_offsets(p.kept, p.kept_count, outer);
  const int64_t column = int64_t{inner_vector} * V;
  const T* in = static_cast<const T*>(p.in) + offsets.in + column;
  const auto count = static_cast<int>(min(p.columns - column, int64_t{V}));
  const auto load = [&](uint32_t row) {
    uint32_t inner;
    const uint32_t outer_row = p.runs.divide(row, &inner);
    return load_shifted(in + outer_row * p.outer_stride + inner * p.inner_stride, count * sizeof(T),
                        p.l2_policy);
  };

  typename Op::Lane best[V];
#pragma unroll
  for (int i = 0; i < V; ++i) best[i] = Op::identity();
  const auto end = static_cast<uint32_t>(p.extent);  // below 2^31
  uint32_t row = 0;
#pragma unroll 1
  for (; row + U <= end; row += U) {
    uint4 x[U];
#pragma unroll
    for (int i = 0; i < U; ++i) x[i] = load(row + i);
    fold_rows<Op>(p, x, row, 1, best);
  }
  if (row < end) {  // fewer than a batch, which is filled up
    uint4 x[U];
#pragma unroll
    for (int i = 0; i < U; ++i) {
      x[i] = {p.filler_low, p.filler_high, p.filler_low, p.filler_high};
      if (row + i < end) x[i] = load(row + i);
    }
    fold_rows<Op>(p, x, row, 1, best);
  }
  const KeptDim& kept = p.kept[Params::kMaxKept - 1];
  auto* out = static_cast<typename Op::Out*>(p.out) + offsets.out + column * kept.out_stride;
  store_lanes<Op>(p, out, kept.out_stride, count, best);
}

// The same of one output each, at any strides: element by element, with nothing to shift and little
// to execute.
template <typename Op>
__global__ void __launch_bounds__(256, 4) thin_columns_kernel(const __grid_constant__ Params p) {
  using T = typename Op::Element;
  constexpr int U = 8;                                        // rows in flight
  const uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;  // of all outputs, below 2^31
  Offsets offsets;
  int64_t outputs;
  if (p.kept_count == 0) {
    outputs = p.columns, offsets = {at * p.row_stride, at * p.row_out_stride};
  } else {
    uint32_t column;  // along the innermost kept dimension
    const uint32_t outer = p.kept_inner.divide(at, &column);
    const KeptDim& kept = p.kept[Params::kMaxKept - 1];
    outputs = p.busy_threads, offsets = kept_offsets(p.kept, p.kept_count, outer);
    offsets.in += column * kept.in_stride, offsets.out += column * kept.out_stride;
  }
  if (at >= outputs) return;
  const T* in = static_cast<const T*>(p.in) + offsets.in;
  const Bits<T> filler = filler_bits<T>(p);
  typename Op::Lane best = Op::identity();
  const auto fold_all = [&](const auto& address_of) {
    const auto end = static_cast<uint32_t>(p.extent);  // below 2^31
#pragma unroll 1
    for (uint32_t row = 0; row < end; row += U) {
      Bits<T> bits[U];
#pragma unroll
      for (int i = 0; i < U; ++i) {
        bits[i] = filler;
        const T* element = address_of(row + i);
        if (row + i < end) bits[i] = load_bits(element);
      }
      Number<T> x[U];
#pragma unroll
      for (int i = 0; i < U; ++i) x[i] = to_number<T, Op::kTransforms>(p.transform, bits[i]);
      best = take<Op>(p, best, x, row, 1);
    }
  };
  if (p.one_dim) {  // next to nothing to execute from one load to the next
    fold_all([&](uint32_t) { return (in += p.inner_stride) - p.inner_stride; });
  } else {
    fold_all([&](uint32_t row) {
      uint32_t inner;
      const uint32_t outer = p.runs.divide(row, &inner);
      return in + outer * p.outer_stride + inner * p.inner_stride;
    });
  }
  static_cast<typename Op::Out*>(p.out)[offsets.out] = Op::finish_lane(best, p);
}

// The elements of one column: p.extent of them at first, first + step, ... of its rows, U at once.
template <typename Op, int U>
__device__ inline typename Op::Lane take_rows(const ElementsParams& p,
                                              const typename Op::Element* in, uint32_t first,
                                              uint32_t step, typename Op::Lane lane) {
  using T = typename Op::Element;
  Bits<T> bits[U];
#pragma unroll
  for (int i = 0; i < U; ++i) {
    if (first + i * step < p.extent)
      bits[i] = load_streamed_bits(in + i * (step * p.reduced_stride));
  }
  const Bits<T> filler = filler_bits<T>(p.base);  // late: it lies in another line of constants
  Number<T> x[U];
#pragma unroll
  for (int i = 0; i < U; ++i) {
    x[i] = to_number<T, Op::kTransforms>(p.base.transform,
                                         first + i * step < p.extent ? bits[i] : filler);
  }
  return take<Op>(p.base, lane, x, first, step);
}

// The same of few rows, with nothing to execute but their loads.
template <typename Op>
__global__ void __launch_bounds__(256)
    short_columns_kernel(const __grid_constant__ ElementsParams p) {
  const uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;  // of all outputs, below 2^31
  if (at >= p.outputs) return;
  const auto* in = static_cast<const typename Op::Element*>(p.in) + at * p.kept_stride;
  const auto lane = take_rows<Op, kMaxShortColumnRows>(p, in, 0, 1, Op::identity());
  static_cast<typename Op::Out*>(p.out)[at * p.kept_out_stride] = Op::finish_lane(lane, p.base);
}

// 32 columns by a block, of whose warps each takes other rows.
template <typename Op>
__global__ void __launch_bounds__(kWarpColumnsThreads)
    warp_columns_kernel(const __grid_constant__ ElementsParams p) {
  using Lane = typename Op::Lane;
  constexpr int U = 8, kWarps = kWarpColumnsThreads / 32;
  struct Storage {
    Lane of_warp[kWarps][32];
  };
  XGEMM_STATIC_SHARED(Storage, shared);
  const uint32_t in_warp = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t at = blockIdx.x * 32 + in_warp;  // of all outputs, below 2^31
  const auto* in =
      static_cast<const typename Op::Element*>(p.in) + at * p.kept_stride + warp * p.reduced_stride;
  Lane lane = Op::identity();
  if (at < p.outputs) {
#pragma unroll 1
    for (uint32_t row = warp; row < p.extent; row += U * kWarps) {
      lane = take_rows<Op, U>(p, in, row, kWarps, lane);
      in += U * kWarps * p.reduced_stride;
    }
  }
  shared.of_warp[warp][in_warp] = lane;
  __syncthreads();
  if (warp != 0 || at >= p.outputs) return;
  typename Op::Acc acc = Op::widen(lane, 0);
#pragma unroll
  for (int other = 1; other < kWarps; ++other) {
    acc = Op::combine(acc, Op::widen(shared.of_warp[other][in_warp], 0));
  }
  static_cast<typename Op::Out*>(p.out)[at * p.kept_out_stride] = Op::finish(acc, p.base);
}

}  // namespace xgemm::cuda::reduce
