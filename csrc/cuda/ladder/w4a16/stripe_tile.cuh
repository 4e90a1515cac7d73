// The tiles of rung 5: which they are, and how they lie in shared memory.
#pragma once

#include "cuda/ladder/w4a16/packed.cuh"

namespace xgemm::cuda::ladder::w4a16::rung5 {

inline constexpr int kThreads = 256;

// What a tile is: 32 k x 64 columns for each warp.
template <int kRows>
struct Tile {
  static constexpr int kK = kRows == 16 ? 128 : 64, kN = kRows == 16 ? 128 : 256;
  static constexpr int kWarpsK = kK / 32, kWarpsN = kN / kWarpColumns;
  static_assert(kWarpsK * kWarpsN * 32 == kThreads);

  int k, row, column;  // of Y, where it begins

  __device__ Tile(const Operands& x, int number)
      : k(number % (x.k / kK) * kK),
        row(number / (x.k / kK) % row_blocks(x) * kRows),
        column(number / (x.k / kK) / row_blocks(x) * kN) {}
  __device__ static int row_blocks(const Operands& x) { return (x.m + kRows - 1) / kRows; }
  __device__ static int count(const Operands& x) { return x.k / kK * row_blocks(x) * (x.n / kN); }
  __device__ bool ends_column(const Operands& x) const { return k + kK == x.k; }
  // Down the column of tiles, then to the next rows of X, which have the same weights.
  __device__ void next(const Operands& x) {
    k += kK;
    if (k < x.k) return;
    k = 0;
    row += kRows;
    if (row < x.m) return;
    row = 0;
    column += kN;
  }
};

// X as on rung 4.
template <int kRows>
struct alignas(128) Stage {
  using At = Tile<kRows>;
  static constexpr int kPieces = At::kK / 8;
  uint4 codes[At::kWarpsK * At::kWarpsN][64];
  uint4 x[kRows * kPieces];
  uint4 scales[At::kWarpsN * 8];

  __device__ static int place_of(int row, int piece) {
    return row * kPieces + (piece ^ row % 2 * 4);
  }
  __device__ void load(Fragments<kRows>& out, int warp, int lane) const {
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      out.rows[i] = x[place_of(i * 8 + lane / 4, warp / At::kWarpsN * 4 + lane % 4)];
    }
    out.load_weights(codes[warp], scales + warp % At::kWarpsN * 8, lane);
  }
};

}  // namespace xgemm::cuda::ladder::w4a16::rung5
