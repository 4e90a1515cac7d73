// A row, or a piece of one, by a block: 16-byte loads along the row, several in flight.
//
// A row is one run of contiguous elements at any alignment, or (kRuns) several that all lie at
// multiples of 16 bytes. Its pieces take turns: a batch of loads each, so that all blocks go
// through memory together.
#pragma once

#include "cuda/reduce/block.cuh"

namespace xgemm::cuda::reduce {

// An element of a row before its first or after its last whole vector.
template <typename T>
struct Edge {
  bool exists;
  uint32_t position;
};

// A thread's: `skip` elements stand between the first vector's start and the row's, which has
// `extent`; `end_vector` whole vectors end before its end.
template <typename T>
__device__ inline Edge<T> edge_of(uint32_t thread, uint32_t skip, int64_t extent,
                                  uint32_t end_vector) {
  constexpr uint32_t V = kVector<T>;
  const bool head = thread < V;
  const int64_t at = head ? thread : int64_t{end_vector} * V + thread - V;
  const bool inside = thread < 2 * V && at >= skip && at < skip + extent;
  // A row within one vector has no tail beside its head.
  const bool counted = head ? skip != 0 : skip == 0 || end_vector != 0;
  return {inside && counted, static_cast<uint32_t>(at - skip)};
}

template <typename Op, bool kSm90, bool kRuns>
__global__ void __launch_bounds__(512, 2) rows_kernel(const __grid_constant__ Params p) {
  using T = typename Op::Element;
  using Lane = typename Op::Lane;
  constexpr int V = kVector<T>, U = sizeof(T) == 1 ? 4 : 8;  // loads in flight
  const uint32_t threads = blockDim.x, thread = threadIdx.x;
  const Place place = place_of(p);
  start_block<Op, kSm90>(p, place, 1);
  const Offsets offsets = kept_offsets(p.kept, p.kept_count, place.tile);
  const T* row = static_cast<const T*>(p.in) + offsets.in;
  const uint32_t skip = kRuns ? 0 : (reinterpret_cast<uintptr_t>(row) & 15) / sizeof(T);
  const T* vectors = row - skip;
  const uint32_t end = static_cast<uint32_t>((skip + p.extent) / V);  // below 2^31

  // The i-th of a batch that starts at vector v.
  const auto load = [&](uint32_t v, int i) {
    if constexpr (!kRuns) {
      const int64_t step = threads * V;
      return ptx::ld_global_nc_no_allocate(vectors + int64_t{v} * V + i * step);
    }
    uint32_t in_run;
    const uint32_t run = p.runs.divide(v + i * threads, &in_run);
    return ptx::ld_global_nc_no_allocate(vectors + run * p.outer_stride + int64_t{in_run} * V);
  };
  uint32_t v = (skip != 0) + place.piece * (threads * U) + thread;
  const uint32_t step = p.pieces.divisor * (threads * U);
  Lane lane = Op::identity();
  Bits<T> edge_bits{};
  Edge<T> edge{false, 0};
  if (!kRuns && place.piece == 0 && (skip != 0 || (skip + p.extent) % V != 0)) [[unlikely]] {
    edge = edge_of<T>(thread, skip, p.extent, end);
    if (edge.exists) edge_bits = load_bits(row + edge.position);
  }
#pragma unroll 1
  for (; v + (U - 1) * threads < end; v += step) {
    uint4 x[U];
#pragma unroll
    for (int i = 0; i < U; ++i) x[i] = load(v, i);
    Lane parts[U];
#pragma unroll
    for (int i = 0; i < U; ++i) {
      parts[i] = fold_vector<Op>(p, x[i], (v + i * threads) * V - skip);
    }
    lane = Op::meet(lane, fold_tree<U>(parts, [](Lane a, Lane b) { return Op::meet(a, b); }));
  }
  if (v < end) {  // fewer than a batch, still all loaded before the first is used
    uint4 x[U];
#pragma unroll
    for (int i = 0; i < U; ++i) {
      if (v + i * threads < end) x[i] = load(v, i);
    }
#pragma unroll
    for (int i = 0; i < U; ++i) {
      if (v + i * threads < end) {
        lane = Op::meet(lane, fold_vector<Op>(p, x[i], (v + i * threads) * V - skip));
      }
    }
  }
  if (edge.exists) {
    const Number<T> one[1] = {to_number<T, Op::kTransforms>(p.transform, edge_bits)};
    lane = Op::meet(lane, Op::fold(one, edge.position, 1, p));
  }
  typename Op::Acc acc[1] = {Op::widen(lane, 0)};
  finish_block<Op, 1, kSm90, false>(p, place.piece, acc, 1, [&](int) { return offsets.out; });
}

}  // namespace xgemm::cuda::reduce
