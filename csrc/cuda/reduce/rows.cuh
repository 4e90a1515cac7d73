// A row, or a piece of one, by a block: 16-byte loads along the row, several in flight.
//
// A row is one run of contiguous elements, or several of equal length (runs_kernel), at any
// alignment. Its pieces take turns: a batch of loads each, so that all blocks go through memory
// together. Shorter rows have a team of lanes each (team_rows_kernel).
#pragma once

#include "cuda/reduce/block.cuh"

namespace xgemm::cuda::reduce {

// What a thread has of a row: of `threads` that share the row, or one of its pieces, the one at
// `thread`. `reads` is false where there is no such row.
template <typename Op>
__device__ inline typename Op::Lane fold_row(const Params& p, const typename Op::Element* row,
                                             bool reads, uint32_t thread, uint32_t threads,
                                             uint32_t piece, uint32_t pieces) {
  using T = typename Op::Element;
  using Lane = typename Op::Lane;
  constexpr int V = kVector<T>;
  constexpr int U = sizeof(T) == 1 || kRare<Op> ? 4 : 8;  // loads in flight
  const uint32_t skip = (reinterpret_cast<uintptr_t>(row) & 15) / sizeof(T);
  const T* vectors = row - skip;
  const uint32_t end = reads ? static_cast<uint32_t>((skip + p.extent) / V) : 0;  // below 2^31

  const auto load = [&](uint32_t v) {
    return ptx::ld_global_nc_no_allocate(vectors + int64_t{v} * V, p.l2_policy);
  };
  uint32_t v = (skip != 0) + piece * (threads * U) + thread;
  Lane lane = Op::identity();
  Bits<T> edge_bits{};
  int64_t edge = -1;  // the place of an element beside the whole vectors
  bool first = reads && piece == 0;
  // All of a batch is loaded before the first is used. Two loads share a branch: short rows, which
  // take less than a batch, are as slow as what there is to execute, and to fetch for that.
#pragma unroll 1
  do {
    uint4 x[U];
#pragma unroll
    for (int i = 0; i < U; i += 2) {
      if (v + i * threads >= end) break;
      x[i] = load(v + i * threads);
      x[i + 1] = {p.filler_low, p.filler_high, p.filler_low, p.filler_high};
      if (v + (i + 1) * threads < end) x[i + 1] = load(v + (i + 1) * threads);
    }
    if (first) {  // elements before the first and after the last whole vector: one of each thread
      first = false;
      const auto head = static_cast<uint32_t>(min(int64_t{(V - skip) % V}, p.extent));
      const uint32_t edges = head + (static_cast<uint32_t>(p.extent) - head) % V;
      if (thread < edges) {
        edge = thread < head ? thread : p.extent - edges + thread;
        edge_bits = load_bits(row + edge);
      }
    }
    // Four chains for fp32; what is 8 bytes needs none, and has no registers for them.
    constexpr int kChains = sizeof(Lane) == 4 ? U / 2 : 1;
    Lane parts[kChains];
#pragma unroll
    for (Lane& part : parts) part = Op::identity();
    if constexpr (kChains == 1) parts[0] = lane;
#pragma unroll
    for (int i = 0; i < U; i += 2) {
      const uint32_t at = v + i * threads;
      if (at >= end) break;
      Lane& part = parts[i / 2 % kChains];
      part = take_vector<Op>(p, part, x[i], at * V - skip);
      part = take_vector<Op>(p, part, x[i + 1], (at + threads) * V - skip);
    }
    if constexpr (kChains == 1) {
      lane = parts[0];
    } else {
      lane =
          Op::meet(lane, fold_tree<kChains>(parts, [](Lane a, Lane b) { return Op::meet(a, b); }));
    }
    v += pieces * (threads * U);
  } while (v < end);
  if (edge >= 0) {
    const Number<T> one[1] = {to_number<T, Op::kTransforms>(p.transform, edge_bits)};
    lane = Op::meet(lane, take<Op>(p, Op::identity(), one, static_cast<uint32_t>(edge), 1));
  }
  return lane;
}

// The lanes of `width` adjacent threads, a power of 2.
template <typename Op>
__device__ inline typename Op::Lane meet_lanes(typename Op::Lane lane, uint32_t width) {
  for (uint32_t mask = width / 2; mask > 0; mask /= 2) {
    lane = Op::meet(lane, shuffle_xor(lane, mask));
  }
  return lane;
}

// Of the block's warps, of which all lanes have `acc`, for thread 0.
template <typename Op>
__device__ inline typename Op::Acc meet_warps(typename Op::Acc acc) {
  XGEMM_DYNAMIC_SHARED(char, raw, 16);
  auto* shared = reinterpret_cast<typename Op::Acc*>(raw);
  const uint32_t warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = acc;
  __syncthreads();
  if (threadIdx.x == 0) {  // shuffles would take longer
#pragma unroll
    for (uint32_t warp = 1; warp < kMaxRowWarps; ++warp) {
      if (warp < warps) acc = Op::combine(acc, shared[warp]);
    }
  }
  return acc;
}

template <typename Op>
__global__ void __launch_bounds__(kMaxRowWarps * 32, kRare<Op> ? 1 : 2)
    rows_kernel(const __grid_constant__ Params p) {
  uint32_t tile = blockIdx.x, piece = 0;
  if (p.pieces.divisor > 1) tile = p.pieces.divide(blockIdx.x, &piece);
  Offsets offsets = {tile * p.row_stride, tile * p.row_out_stride};
  if (p.kept_count > 1 || p.first_tile > 0) [[unlikely]] {
    offsets = kept_offsets(p.kept, p.kept_count, p.first_tile + tile);
  }
  const auto lane = fold_row<Op>(p, static_cast<const typename Op::Element*>(p.in) + offsets.in,
                                 true, threadIdx.x, blockDim.x, piece, p.pieces.divisor);
  if (p.pieces.divisor > 1) {
    typename Op::Acc acc[1] = {Op::widen(lane, 0)};
    finish_block<Op, 1, false>(p, piece, acc, 1, {}, [&](int) { return offsets.out; });
    return;
  }
  const auto acc = meet_warps<Op>(Op::widen(meet_lanes<Op>(lane, 32), 0));
  if (threadIdx.x == 0) {
    static_cast<typename Op::Out*>(p.out)[offsets.out] = Op::finish(acc, p);
  }
}

// A row that is several runs: their loads are counted one run behind the other.
template <typename Op>
__global__ void __launch_bounds__(kMaxRowWarps * 32, sizeof(typename Op::Acc) <= 8 ? 2 : 1)
    runs_kernel(const __grid_constant__ StridedParams params) {
  using T = typename Op::Element;
  using Lane = typename Op::Lane;
  constexpr int V = kVector<T>, U = sizeof(T) == 1 ? 4 : 8;  // loads in flight
  const Params& p = params.base;
  const Place place = place_of(p);
  const Offsets offsets = kept_offsets(p.kept, p.kept_count, place.tile);
  const T* row = static_cast<const T*>(p.in) + offsets.in;
  const uint32_t length = params.run_length, end = params.row_loads;  // below 2^31
  const uint32_t threads = blockDim.x;
  constexpr int kChains = sizeof(Lane) == 4 ? 2 : 1;
  Lane lanes[kChains];
#pragma unroll
  for (Lane& lane : lanes) lane = Op::identity();
#pragma unroll 1
  for (uint32_t v = place.piece * (threads * U) + threadIdx.x; v < end;
       v += p.pieces.divisor * (threads * U)) {
    uint4 x[U];
    uint32_t at[U];  // of a load's first element in its run
#pragma unroll
    for (int i = 0; i < U; ++i) {
      uint32_t in_run;
      const uint32_t run = p.runs.divide(v + i * threads, &in_run);
      const T* start = row;
      uint32_t rest = run;
#pragma unroll 1
      for (int d = params.reduced_count - 2; d > 0; --d) {
        uint32_t place_in_dim;
        rest = params.reduced[d].divmod.divide(rest, &place_in_dim);
        start += place_in_dim * params.reduced[d].stride;
      }
      start += rest * params.reduced[0].stride;
      const uint32_t skip = (reinterpret_cast<uintptr_t>(start) & 15) / sizeof(T);
      at[i] = in_run * V - skip;
      // Runs do not all reach into as many loads; `length` says that there is no element.
      if (v + i * threads >= end || in_run * V >= skip + length) {
        at[i] = length;
      } else {
        x[i] = ptx::ld_global_nc_no_allocate(start + static_cast<int>(at[i]), p.l2_policy);
      }
    }
#pragma unroll
    for (int i = 0; i < U; ++i) {
      if (at[i] == length) continue;
      Lane& lane = lanes[i % kChains];
      lane = take_part<Op>(p, lane, x[i], at[i], length, p.runs.divide(v + i * threads) * length);
    }
  }
  const Lane lane = fold_tree<kChains>(lanes, [](Lane a, Lane b) { return Op::meet(a, b); });
  typename Op::Acc acc[1] = {Op::widen(lane, 0)};
  finish_block<Op, 1, false>(p, place.piece, acc, 1, {}, [&](int) { return offsets.out; });
}

// A row by a team of `lanes` lanes of a warp, which are at least two vectors' elements.
template <typename Op>
__global__ void __launch_bounds__(256, sizeof(typename Op::Lane) == 4 ? 4 : 3)
    team_rows_kernel(const __grid_constant__ Params p) {
  const uint32_t lanes = p.lanes, in_team = threadIdx.x & (lanes - 1);
  const int64_t teams = blockDim.x >> __popc(lanes - 1);
  const int64_t row = (p.first_tile + blockIdx.x) * teams + (threadIdx.x >> __popc(lanes - 1));
  const bool reads = row < p.outputs;
  Offsets offsets = {0, 0};
  if (reads) offsets = kept_offsets(p.kept, p.kept_count, row);
  auto lane = fold_row<Op>(p, static_cast<const typename Op::Element*>(p.in) + offsets.in, reads,
                           in_team, lanes, 0, 1);
  lane = meet_lanes<Op>(lane, lanes);
  if (reads && in_team == 0) {
    static_cast<typename Op::Out*>(p.out)[offsets.out] = Op::finish_lane(lane, p);
  }
}

}  // namespace xgemm::cuda::reduce
