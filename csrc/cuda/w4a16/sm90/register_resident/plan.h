// How the kernel for small weights shares out a product, and what lies where in shared memory.
// Pure: the host plans with it, and tests look at it without a GPU.
#pragma once

#include <cstdint>

#include "common/math.h"
#include "w4/packed_layout.h"

namespace xgemm::cuda::w4a16::sm90::register_resident {

// Of X. With more every CTA's copy of X costs more than clusters that read it once.
inline constexpr int kMaxRows = 2;
// A warp's part of the weight lies in its registers: `kUnits` of K and up to kMaxStrips columns'.
inline constexpr int kUnits = 2, kMaxStrips = 3;
inline constexpr int kMaxWarps = 16;  // of a CTA, which has all of K
inline constexpr int kSmemBytes = 227 * 1024;

// A row of X in shared memory has 16 bytes more than its channels: the 8 rows that ldmatrix takes
// at once start in 8 bank groups.
inline constexpr int kXPadding = 16;

// Floats of a warp's sums of a row, and of all warps', which any number of them leaves where it is.
// A lane stores at column gid and rows 2 tig: twice the latter is 8 (mod 32), so that no two of
// them share a bank.
XGEMM_HOST_DEVICE constexpr int warp_pitch(int strips) {
  return strips * static_cast<int>(w4::kStripColumns);
}
XGEMM_HOST_DEVICE constexpr int row_pitch(int strips) { return kMaxWarps * warp_pitch(strips) + 4; }

struct Plan {
  int rows, warps;
  int strips;  // of D's columns, a CTA's

  constexpr int x_pitch() const {
    return warps * kUnits * static_cast<int>(w4::kUnitK) * 2 + kXPadding;
  }
  // Shared memory: X, then the warps' sums.
  constexpr int sums() const { return rows * x_pitch(); }
  constexpr int bytes() const { return sums() + rows * row_pitch(strips) * 4; }
};
static_assert(Plan{kMaxRows, kMaxWarps, kMaxStrips}.bytes() <= kSmemBytes);

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
