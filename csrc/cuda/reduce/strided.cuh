// Any strides, any number of dimensions: element by element. A block has `lanes` adjacent outputs,
// and its threads beyond that take other elements of them.
#pragma once

#include "cuda/reduce/block.cuh"

namespace xgemm::cuda::reduce {

// Of the index-th element of a reduced extent of several dimensions, which 31 bits do not count.
__device__ __noinline__ inline int64_t reduced_offset(const StridedParams& p, int64_t index) {
  int64_t offset = 0;
#pragma unroll 1
  for (int d = p.reduced_count - 1; d > 0; --d) {
    const int64_t quotient = index / p.reduced[d].size;
    offset += (index - quotient * p.reduced[d].size) * p.reduced[d].stride;
    index = quotient;
  }
  return offset + index * p.reduced[0].stride;
}

// Of the elements index, index + step, ...: all of them, so that their loads wait for nothing.
template <int U>
__device__ inline void reduced_offsets(const StridedParams& p, int64_t index, uint32_t step,
                                       int64_t (&offsets)[U]) {
  if (p.base.extent >> 31 != 0) [[unlikely]] {
#pragma unroll
    for (int j = 0; j < U; ++j) {
      offsets[j] = index + j * step < p.base.extent ? reduced_offset(p, index + j * step) : 0;
    }
    return;
  }
  uint32_t rest[U];
#pragma unroll
  for (int j = 0; j < U; ++j) rest[j] = static_cast<uint32_t>(index) + j * step, offsets[j] = 0;
#pragma unroll 1
  for (int d = p.reduced_count - 1; d > 0; --d) {
#pragma unroll
    for (int j = 0; j < U; ++j) {
      uint32_t at;
      rest[j] = p.reduced[d].divmod.divide(rest[j], &at);
      offsets[j] += at * p.reduced[d].stride;
    }
  }
#pragma unroll
  for (int j = 0; j < U; ++j) offsets[j] += rest[j] * p.reduced[0].stride;
}

// CTAs of 512 threads that an SM is to hold. Two have 64 registers a thread, which a few values of
// 8-byte types would not fit in. (A preprocessor's condition cannot ask for Hopper here: its
// machine code comes from the portable PTX, which is compute_80's.)
template <typename T>
inline constexpr int kStridedCtas = sizeof(T) <= 4 ? 2 : 1;

template <typename Op, int U>
__global__ void __launch_bounds__(512, kStridedCtas<typename Op::Element>)
    strided_kernel(const __grid_constant__ StridedParams p) {
  using T = typename Op::Element;
  const Place place = place_of(p.base);
  const uint32_t lanes = p.base.lanes, log_lanes = __popc(lanes - 1);
  const uint32_t rows = blockDim.x >> log_lanes;
  const int64_t first_output = place.tile * lanes;
  const int64_t output = first_output + (threadIdx.x & (lanes - 1));
  const T* in = static_cast<const T*>(p.base.in);
  const int64_t begin = place.piece * p.piece_length;
  uint32_t end = 0;  // of the piece, below 2^31
  if (output < p.base.outputs) {
    in += kept_offsets(p.kept, p.kept_count, output).in;
    // The last pieces may have nothing left.
    end = static_cast<uint32_t>(max(min(p.base.extent - begin, p.piece_length), int64_t{0}));
  }
  typename Op::Lane best = Op::identity();
#pragma unroll 1
  for (uint32_t i = threadIdx.x >> log_lanes; i < end; i += U * rows) {
    Bits<T> bits[U];
    if (p.reduced_count == 1) {  // pointers move on
      const T* at = in + (begin + i) * p.reduced[0].stride;
      const int64_t step = rows * p.reduced[0].stride;
#pragma unroll
      for (int j = 0; j < U; ++j) {
        if (i + j * rows < end) bits[j] = load_bits(at + j * step);
      }
    } else {
      // By halves: all offsets at once take more registers than there are, and the first half's
      // loads are under way while the second's offsets are computed.
      constexpr int kHalf = (U + 1) / 2;
#pragma unroll
      for (int half = 0; half < U; half += kHalf) {
        int64_t offsets[kHalf];
        reduced_offsets(p, begin + i + half * rows, rows, offsets);
#pragma unroll
        for (int j = 0; j < kHalf; ++j) {
          if (i + (half + j) * rows < end) bits[half + j] = load_bits(in + offsets[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < U; ++j) {
      if (i + j * rows >= end) break;
      const Number<T> one[1] = {to_number<T, Op::kTransforms>(p.base.transform, bits[j])};
      best = take<Op>(p.base, best, one, i + j * rows, 1);
    }
  }
  typename Op::Acc acc[1] = {Op::widen(best, begin)};
  finish_block<Op, 1, false>(p.base, place.piece, acc, lanes, {}, [&](int i) {
    const int64_t at = first_output + i;
    return at < p.base.outputs ? kept_offsets(p.kept, p.kept_count, at).out : int64_t{-1};
  });
}

}  // namespace xgemm::cuda::reduce
