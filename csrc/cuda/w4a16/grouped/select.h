// Which kernel multiplies, and by tiles of how many rows.
#pragma once

#include "cuda/w4a16/grouped/problem.h"
#include "cuda/w4a16/grouped/tile.h"

namespace xgemm::cuda::w4a16::grouped {

// Whether the halves of a gate lie so that the product applies it.
inline bool gates_itself(const Problem& p) {
  return is_gated(p.activation) && p.weight.layout.n % kColumns == 0;
}

// Tiles of columns by wgmma, for a tile of rows.
inline int64_t wgmma_column_blocks(const Problem& p) {
  return ceil_div<int64_t>(p.weight.layout.n, kWgmmaBlocks * kColumns);
}

// The rows of a tile of the kernel by wgmma; 0: mma.sync multiplies.
int select_wgmma(const Problem& problem, const DeviceInfo& device);

}  // namespace xgemm::cuda::w4a16::grouped
