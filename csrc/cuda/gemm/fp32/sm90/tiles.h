// The tiles of the kernels on the FP64 tensor cores, as their choice, their launch and the kernels
// must agree on them.
#pragma once

namespace xgemm::cuda::gemm::fp32::sm90 {

inline constexpr int kDepth = 32;       // k of a box: a row of them is the swizzle's 128 bytes
inline constexpr int kPairOfSteps = 8;  // k that a warp multiplies at a time, by two steps

// A warp has 32 x 32 of a tile.
struct TileShape {
  int block_m, block_n;
  int slices;  // warps that share a part of the tile and each multiply other k
  int stages;
  int ctas_of_tma, ctas_of_copies;  // that an SM holds, where TMA loads and where threads copy

  constexpr int warps() const { return block_m / 32 * (block_n / 32) * slices; }
  // Boxes along k of a stage: they give each warp two or four pairs of steps.
  constexpr int boxes() const { return slices == 1 ? 1 : slices / 2; }
  constexpr int stage_depth() const { return boxes() * kDepth; }
};

// A warp waits for conversions and for shared memory: the other CTAs of its SM fill in. Copies by
// threads take more registers.
inline constexpr TileShape kTile64x64{64, 64, 1, 3, 4, 3};
// Of few rows: B is read once.
inline constexpr TileShape kTile32x128{32, 128, 1, 3, 3, 3};
// Of batches of small matrices, a warp each.
inline constexpr TileShape kTileOfWarp{32, 32, 1, 2, 12, 12};
// Of products with few tiles: four warps share K.
inline constexpr TileShape kTileSliced{32, 32, 4, 3, 4, 3};
// The same, of TF32.
inline constexpr TileShape kTileOfTf32{32, 32, 4, 4, 3, 3};

struct Config {
  const TileShape* shape;  // of these
  bool by_threads;         // operands are copied by threads, else by TMA
  int splits;              // parts of K of the tiles that are split, the last ones
  int ctas;                // of the grid

  bool tf32() const { return shape == &kTileOfTf32; }
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
