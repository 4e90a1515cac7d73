// How the kernel for small weights shares out a product, and what lies where in shared memory.
// Pure: the host plans with it, and tests look at it without a GPU.
#pragma once

#include <cstdint>

#include "common/math.h"
#include "w4/packed_layout.h"

namespace xgemm::cuda::w4a16::sm90::register_resident {

// A warp's part of the weight lies in its registers: `kUnits` of K of a strip of columns.
inline constexpr int kUnits = 2;
inline constexpr int kMaxWarps = 16;  // of a CTA, which has all of K
inline constexpr int kSmemBytes = 227 * 1024;
// Floats of a warp's sums, which any number of warps leaves where they are.
inline constexpr int kWarpSums = w4::kStripColumns;

// A CTA has one row of X and a strip of D's columns.
struct Plan {
  int warps;

  // Shared memory: X, then the warps' sums.
  constexpr int sums() const { return warps * kUnits * static_cast<int>(w4::kUnitK) * 2; }
  constexpr int bytes() const { return sums() + kMaxWarps * kWarpSums * 4; }
};
static_assert(Plan{kMaxWarps}.bytes() <= kSmemBytes);

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
