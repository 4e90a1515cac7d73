// What the general kernel is told.
#pragma once

namespace xgemm::cuda::gemm::simt {

inline constexpr int kBlock = 64;  // rows and columns of a tile
struct Config {
  int ctas;  // of the grid
};

}  // namespace xgemm::cuda::gemm::simt
