// A warp's part of a tile, and its fragments from shared memory.
#pragma once

#include "cuda/gemm/fp32/sm90/tile.cuh"
#include "cuda/ptx/ld_st.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

// The row (or column) of element x of a block of eight. Blocks are interlaced so that neither reads
// of shared memory collide in banks nor a lane's columns of D are apart.
template <bool kAlongK>
__device__ constexpr int place(int block, int x) {
  return kAlongK ? block / 2 * 16 + x * 2 + block % 2 : block / 4 * 32 + x * 4 + block % 4;
}

// Reads two steps of four k at a time, a pair of steps; lane 4 g + t has k 2 t and 2 t + 1 of the
// pair's eight.
//
// kBoxBytes: where each of the warp's pairs is in another box of the stage (the slice-th of it),
// how far they are apart; else 0.
template <int kRows, bool kAlongK, int kBoxBytes>
class FragmentReader {
 public:
  static constexpr int kBlocks = kRows / 8;

  // tile: shared-memory address of the operand's tile in the first stage.
  __device__ FragmentReader(uint32_t tile, int row, int slice, int lane) {
    const int g = lane / 4, t = lane % 4;
    const int line = kAlongK ? row + 2 * g : row / 32 * kDepth + slice * kPairOfSteps + 2 * t;
    const int chunk = kAlongK ? slice * 2 + t / 2 : g;
    even_ =
        tile + line * 128 + (chunk ^ layout::swizzle_xor(line, 3)) * 16 + (kAlongK ? t % 2 * 8 : 0);
    odd_ = (even_ ^ 16) + 128;
  }

  // stage: the offset of the stage.
  __device__ void load(float (&to)[2][kBlocks], uint32_t stage, int pair) const {
    const int along_k = kBoxBytes > 0 ? 0 : pair * 32, along_rows = kBoxBytes > 0 ? 0 : pair * 8;
    if constexpr (kBoxBytes > 0) stage += pair * kBoxBytes;
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        const uint32_t at = ((i % 2 == 0 ? even_ : odd_) ^ along_k) + stage;
        const float2 x = ptx::ld_shared2_in_order(at + i / 2 * 16 * 128);
        to[0][i] = x.x, to[1][i] = x.y;
      }
    } else {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int i = 0; i < kBlocks; i += 4) {
          const uint32_t at = (step == 0 ? even_ : odd_) + stage;
          const float4 x = ptx::ld_shared_in_order(at + (i * 8 + along_rows) * 128);
          to[step][i] = x.x, to[step][i + 1] = x.y, to[step][i + 2] = x.z, to[step][i + 3] = x.w;
        }
      }
    }
  }

 private:
  uint32_t even_, odd_;  // addresses of the even and the odd lines
};

// Where a warp's part of a tile lies, and its fragments of two pairs of steps.
template <typename Tile, bool kAAlongK, bool kBAlongK>
struct WarpFragments {
  static constexpr int kBlocksM = Tile::kWarpM / 8, kBlocksN = Tile::kWarpN / 8;

  int row, column, lane;  // the warp's first ones in the tile
  int slice;              // of the k of each box

  __device__ WarpFragments(const SharedStorage<Tile>& smem, int warp, int lane)
      : row(kSliced ? 0 : warp / Tile::kWarpsN * Tile::kWarpM),
        column(kSliced ? 0 : warp % Tile::kWarpsN * Tile::kWarpN),
        lane(lane),
        slice(kSliced ? warp : 0),
        read_a_(ptx::smem_address(smem.stages[0].a), row, slice, lane),
        read_b_(ptx::smem_address(smem.stages[0].b), column, slice, lane) {}

  __device__ void load(uint32_t stage, int pair) {
    read_a_.load(a_[pair % 2], stage, pair);
    read_b_.load(b_[pair % 2], stage, pair);
  }

 protected:
  float a_[2][2][kBlocksM], b_[2][2][kBlocksN];  // [pair][step]

 private:
  static constexpr bool kSliced = Tile::kSlices > 1;
  FragmentReader<Tile::kWarpM, kAAlongK, kSliced ? kDepth * Tile::kBlockM * 4 : 0> read_a_;
  FragmentReader<Tile::kWarpN, kBAlongK, kSliced ? kDepth * Tile::kBlockN * 4 : 0> read_b_;
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
