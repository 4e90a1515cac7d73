// Sizes that the choice of a tile, the launch and the kernel for small products must agree on.
#pragma once

namespace xgemm::cuda::gemm::sm90::small {

inline constexpr int kThreads = 288;  // two warpgroups that multiply, a warp that loads
inline constexpr int kChunkK = 64;    // k of a stage: 128 bytes, the swizzle's row

// Rows and columns of D, stages of K. A tile that is not a multiple of 64 wide takes a K-major B
// only.
struct Shape {
  int block_m, block_n, stages;
};
inline constexpr Shape kShapes[] = {
    {64, 32, 16},  //
    {64, 64, 12},  //
    {128, 64, 8},  //
};

// Warpgroups that share k and rows: both, where a tile has the 64 rows of one.
constexpr int sharers_of(int block_m) { return block_m == 64 ? 2 : 1; }

}  // namespace xgemm::cuda::gemm::sm90::small
