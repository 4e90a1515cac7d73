// How the sm_90a kernels lay out an operand in shared memory.
#pragma once

#include "common/math.h"

namespace xgemm::cuda::gemm::sm90 {

inline constexpr int kSwizzleElements = 64;  // 128 bytes of a 16-bit type: the swizzle's row
inline constexpr int kBlockK = 64;
inline constexpr int kVector = 8;  // elements of 16 bytes, which TMA wants aligned
inline constexpr int kWarpgroup = 128;

// 64-wide chunks of an MN-major operand's tile that one load brings, where the tile's `rows` are
// shared out among `sharers` CTAs.
XGEMM_HOST_DEVICE constexpr int chunks_per_load(int rows, int sharers) {
  const int chunks = rows / kSwizzleElements;
  return chunks % sharers == 0 ? chunks / sharers : 1;
}

}  // namespace xgemm::cuda::gemm::sm90
