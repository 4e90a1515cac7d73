// Where things lie and in which order tiles are computed, in one place for kernels, the ladders'
// rungs and the emulator. constexpr: the host and the device call it. python/xgemm/layouts mirrors
// it.
//
// Some kernels have such maths of their own. Where a call changes the machine code it is written
// out: rows of fragments in the bias of gemm/sm90/persistent and in w4a16/sm90/register_resident,
// the swizzle of run-time width in w4a16/sm90/wgmma. The persistent and the wgmma kernels divide by
// precomputed reciprocals (FastDivisor, FastDivmod), so their rasterization groups are not
// grouped_tile.
#pragma once

#include <cstdint>

namespace xgemm::cuda::layout {

template <typename Index>
struct PlaceOf {
  Index row, column;
};
using Place = PlaceOf<int>;

// TMA's and wgmma's swizzle of shared memory: the number of the 128 bytes is XORed into that of the
// 16 bytes within them. bits: 0, 1, 2, 3 for rows of 16, 32, 64, 128 bytes.
constexpr uint32_t swizzled(uint32_t address, int bits) {
  return address ^ (address >> 7 & ((1u << bits) - 1)) << 4;
}

// The same in rows of 16 << bits bytes: what is XORed into the number of 16 bytes within the row.
// Kernels that know row and column apart call this one.
constexpr int swizzle_xor(int row, int bits) { return row / (8 >> bits) % (1 << bits); }

// Element `index` of a thread of an operand of mma or wgmma with `rows` rows. Core matrices have 8
// rows of `core_columns` elements (16 bytes; of sums, 8), of which lane 4 r + t has a quarter of
// row r; a thread's elements go down the rows of a warp's 16 first, then along.
constexpr Place fragment_place(int rows, int core_columns, int thread, int index) {
  const int per_lane = core_columns / 4, core = index / per_lane, lane = thread % 32;
  const int cores_down = (rows < 16 ? rows : 16) / 8;
  return {thread / 32 * 16 + lane / 4 + core % cores_down * 8,
          lane % 4 * per_lane + core / cores_down * core_columns + index % per_lane};
}

// Rasterization: tile `index` of rows x columns of them, down a group of rows first, then to the
// next column, so that tiles which are computed at the same time share operands in L2. Index:
// uint32_t where there are that few, as a division of 64 bits is a call.
template <typename Index>
constexpr PlaceOf<Index> grouped_tile(Index index, Index rows, Index columns, Index group) {
  const Index first = index / (group * columns) * group;
  const Index left = rows - first, height = left < group ? left : group;
  const Index within = index - first * columns;
  return {first + within % height, within / height};
}

// Point `index` of the Hilbert curve through `count` tiles, a square: each step of the loop places
// it in a square twice as large.
constexpr Place hilbert_tile(int index, int count) {
  int row = 0, column = 0;
  for (int size = 1; size * size < count; size *= 2, index /= 4) {
    const int right = index / 2 & 1, down = (index ^ right) & 1;
    if (down == 0) {  // the quadrant is turned
      if (right == 1) row = size - 1 - row, column = size - 1 - column;
      const int turned = row;
      row = column, column = turned;
    }
    row += size * down, column += size * right;
  }
  return {row, column};
}

// Tiles of a stripe where `blocks` share `count` of them.
constexpr int stripe_share(int count, int blocks) { return (count + blocks - 1) / blocks; }

}  // namespace xgemm::cuda::layout
