// Rows of up to a few KB: by one lane, several or a whole warp, several rows a warp.
//
// A warp has kSlots loads of 16 bytes a lane in flight: `vectors` of a row, kSlots / vectors rows
// for each team of `lanes` lanes. Rows are whole loads, one behind the other; or else (kGeneral)
// they are of any length and at any alignment: loads are aligned, and of the first and the last of
// a row only the row's own elements count.
#pragma once

#include <type_traits>
#include <utility>

#include "cuda/reduce/block.cuh"

namespace xgemm::cuda::reduce {

// f(std::integral_constant<int, i>) for i from 0 to kCount - 1.
template <int kCount, typename F>
__device__ inline void for_each(const F& f) {
  [&]<int... kI>(std::integer_sequence<int, kI...>) {
    (f(std::integral_constant<int, kI>()), ...);
  }(std::make_integer_sequence<int, kCount>());
}

template <typename Op, bool kGeneral>
__global__ void __launch_bounds__(256, sizeof(typename Op::Lane) == 4 && !kGeneral ? 3 : 2)
    short_rows_kernel(const __grid_constant__ Params p) {
  using T = typename Op::Element;
  using Lane = typename Op::Lane;
  constexpr uint32_t V = kVector<T>;
  constexpr int kSlots = sizeof(T) == 1 ? 4 : 8;
  const uint32_t lane_id = threadIdx.x % 32, lanes = p.lanes, vectors = p.vectors;
  const uint32_t in_team = lane_id & (lanes - 1), log_lanes = __popc(lanes - 1);
  const uint32_t log_vectors = __popc(vectors - 1);
  const uint32_t warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const uint32_t rows_of_lane = kSlots >> log_vectors, teams = 32 >> log_lanes;
  const uint32_t first_row = warp * rows_of_lane * teams + (lane_id >> log_lanes);
  const uint32_t rows = static_cast<uint32_t>(p.outputs);
  const uint32_t extent = static_cast<uint32_t>(p.extent);

  const auto offset_of = [&](uint32_t row, int64_t KeptDim::* stride) {
    if constexpr (!kGeneral) return row * (p.kept[1].*stride);
    uint32_t inner;
    const uint32_t outer = p.kept_inner.divide(row, &inner);
    return outer * (p.kept[0].*stride) + inner * (p.kept[1].*stride);
  };
  const T* in = static_cast<const T*>(p.in);
  const T* start = in + first_row * p.kept[1].in_stride + in_team * V;  // not of kGeneral
  const int64_t row_step = teams * p.kept[1].in_stride;
  Lane best[kSlots];
#pragma unroll
  for (Lane& lane : best) lane = Op::identity();
#pragma unroll 1
  for (uint32_t begin = in_team; begin < p.row_loads + in_team; begin += vectors * lanes) {
    uint4 x[kSlots];
    uint32_t skip[kSlots];  // elements from the row's first load to its first element
    const T* row_start = start;
    uint32_t row = first_row;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const uint32_t place = (slot & (vectors - 1)) * lanes;  // of the load, beyond `begin`
      const uint32_t at = (begin + place) * V;
      if constexpr (!kGeneral) {
        skip[slot] = row < rows && at < extent ? 0 : 1;  // all of 16 bytes, or nothing
        if (skip[slot] == 0)
          x[slot] = ptx::ld_global_nc_no_allocate(row_start + place * V, p.l2_policy);
      } else {
        row_start = in + offset_of(row, &KeptDim::in_stride);
        skip[slot] = (reinterpret_cast<uintptr_t>(row_start) & 15) / sizeof(T);
        if (row < rows && at < skip[slot] + extent) {
          x[slot] = ptx::ld_global_nc_no_allocate(row_start - skip[slot] + at, p.l2_policy);
        } else {
          skip[slot] = 0u - extent;  // there is none of its elements
        }
      }
      if (((slot + 1) & (vectors - 1)) == 0) row += teams, row_start += row_step;
    }
    start += vectors * lanes * V;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const uint32_t at = (begin + (slot & (vectors - 1)) * lanes) * V;
      if constexpr (!kGeneral) {
        if (skip[slot] == 0) best[slot] = take_vector<Op>(p, best[slot], x[slot], at);
        continue;
      }
      if (skip[slot] + extent == 0) continue;
      best[slot] = take_part<Op>(p, best[slot], x[slot], at - skip[slot], extent, 0);
    }
  }

  // A row's slots are adjacent; its lane is then in the first of them. (Loops that are unrolled by
  // a template keep `best` out of local memory.)
  for_each<3>([&](auto log_distance) {
    constexpr int kDistance = 1 << log_distance;
    if (kDistance >= kSlots || kDistance >= vectors) return;
    for_each<kSlots / kDistance / 2>([&](auto pair) {
      constexpr int kSlot = 2 * kDistance * pair;
      best[kSlot] = Op::meet(best[kSlot], best[kSlot + kDistance]);
    });
  });
  for (uint32_t mask = lanes / 2; mask > 0; mask /= 2) {
    for_each<kSlots>([&](auto slot) {
      if ((slot & (vectors - 1)) != 0) return;
      best[slot] = Op::meet(best[slot], shuffle_xor(best[slot], mask));
    });
  }
  const auto store = [&](uint32_t row, Lane lane) {
    if (row >= rows) return;
    static_cast<typename Op::Out*>(p.out)[offset_of(row, &KeptDim::out_stride)] =
        Op::finish_lane(lane, p);
  };
  if constexpr (sizeof(Lane) == 4) {  // as many results as loads: their code is worth its size
    if (lanes == 1) {
      for_each<kSlots>([&](auto slot) {
        if ((slot & (vectors - 1)) == 0) store(first_row + (slot >> log_vectors) * 32, best[slot]);
      });
      return;
    }
  }
  // All lanes of a team have its results, and store one each: adjacent lanes, adjacent outputs.
#pragma unroll 1
  for (uint32_t i = in_team; i < rows_of_lane; i += lanes) {
    Lane mine = best[0];
    for_each<kSlots>([&](auto slot) {
      if (slot == i << log_vectors) mine = best[slot];
    });
    store(first_row + i * teams, mine);
  }
}

}  // namespace xgemm::cuda::reduce
