// From the accumulators of mma.sync to shared memory, where warps along k are added up.
#pragma once

#include "cuda/tile/layout_index.h"
#include "w4/packed_layout.h"

namespace xgemm::cuda::w4a16::sm80 {

// A warp's sums of Y^T, [kStrips][kRows8] fragments, to rows of Y, kStagingPitch apart, of which
// the warp's first begins at `to`.
template <typename Tile>
__device__ __forceinline__ void stage_sums(const float (&acc)[Tile::kStrips][Tile::kRows8][4],
                                           float* to, int lane) {
  constexpr int kPitch = Tile::kStagingPitch;
  const layout::Place first = layout::fragment_place(16, 8, lane, 0);
  float* own = to + first.column * kPitch + first.row;
#pragma unroll
  for (int s = 0; s < Tile::kStrips; ++s) {
#pragma unroll
    for (int r = 0; r < Tile::kRows8; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        own[(r * 8 + i % 2) * kPitch + s * static_cast<int>(w4::kStripColumns) + i / 2 * 8] =
            acc[s][r][i];
      }
    }
  }
}

}  // namespace xgemm::cuda::w4a16::sm80
