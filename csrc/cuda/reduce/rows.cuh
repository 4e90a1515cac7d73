// A row, or a piece of one, by a block: 16-byte loads along the row, several in flight.
//
// A row is one run of contiguous elements at any alignment, or (kRuns) several that all lie at
// multiples of 16 bytes. Its pieces take turns: a batch of loads each, so that all blocks go
// through memory together. Shorter rows have a team of lanes each (team_rows_kernel).
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

// What a thread has of a row: of `threads` that share the row, or one of its pieces, the one at
// `thread`. `reads` is false where there is no such row.
template <typename Op, bool kRuns>
__device__ inline typename Op::Lane fold_row(const Params& p, const typename Op::Element* row,
                                             bool reads, uint32_t thread, uint32_t threads,
                                             uint32_t piece, uint32_t pieces) {
  using T = typename Op::Element;
  using Lane = typename Op::Lane;
  constexpr int V = kVector<T>, U = sizeof(T) == 1 ? 4 : 8;  // loads in flight
  const uint32_t skip = kRuns ? 0 : (reinterpret_cast<uintptr_t>(row) & 15) / sizeof(T);
  const T* vectors = row - skip;
  const uint32_t end = reads ? static_cast<uint32_t>((skip + p.extent) / V) : 0;  // below 2^31

  // The i-th of a batch that starts at vector v.
  const auto load = [&](uint32_t v, int i) {
    if constexpr (!kRuns) {
      const int64_t step = threads * V;
      return ptx::ld_global_nc_no_allocate(vectors + int64_t{v} * V + i * step, p.l2_policy);
    }
    uint32_t in_run;
    const uint32_t run = p.runs.divide(v + i * threads, &in_run);
    return ptx::ld_global_nc_no_allocate(vectors + run * p.outer_stride + int64_t{in_run} * V,
                                         p.l2_policy);
  };
  uint32_t v = (skip != 0) + piece * (threads * U) + thread;
  const uint32_t step = pieces * (threads * U);
  Lane lane = Op::identity();
  Bits<T> edge_bits{};
  Edge<T> edge{false, 0};
  if (!kRuns && reads && piece == 0 && (skip != 0 || (skip + p.extent) % V != 0)) [[unlikely]] {
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
  return lane;
}

template <typename Op, bool kSm90, bool kRuns>
__global__ void __launch_bounds__(512, 2) rows_kernel(const __grid_constant__ Params p) {
  const Place place = place_of(p);
  start_block<Op, kSm90>(p, place, 1);
  const Offsets offsets = kept_offsets(p.kept, p.kept_count, place.tile);
  const auto lane =
      fold_row<Op, kRuns>(p, static_cast<const typename Op::Element*>(p.in) + offsets.in, true,
                          threadIdx.x, blockDim.x, place.piece, p.pieces.divisor);
  typename Op::Acc acc[1] = {Op::widen(lane, 0)};
  finish_block<Op, 1, kSm90, false>(p, place.piece, acc, 1, [&](int) { return offsets.out; });
}

// A row by a team of `lanes` lanes of a warp, which are at least two vectors' elements.
template <typename Op>
__global__ void __launch_bounds__(256, 4) team_rows_kernel(const __grid_constant__ Params p) {
  const uint32_t lanes = p.lanes, in_team = threadIdx.x & (lanes - 1);
  const int64_t teams = blockDim.x >> __popc(lanes - 1);
  const int64_t row = (p.first_tile + blockIdx.x) * teams + (threadIdx.x >> __popc(lanes - 1));
  const bool reads = row < p.outputs;
  Offsets offsets = {0, 0};
  if (reads) offsets = kept_offsets(p.kept, p.kept_count, row);
  auto lane = fold_row<Op, false>(p, static_cast<const typename Op::Element*>(p.in) + offsets.in,
                                  reads, in_team, lanes, 0, 1);
  for (uint32_t mask = lanes / 2; mask > 0; mask /= 2) {
    lane = Op::meet(lane, shuffle_xor(lane, mask));
  }
  if (reads && in_team == 0) {
    static_cast<typename Op::Out*>(p.out)[offsets.out] = Op::finish(Op::widen(lane, 0), p);
  }
}

}  // namespace xgemm::cuda::reduce
