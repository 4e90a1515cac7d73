// Where things lie and whose turn it is, in one place for kernels, the ladders' rungs and the
// emulator. constexpr: the host and the device call it. python/xgemm/layouts mirrors it.
#pragma once

#include <cstdint>

namespace xgemm::cuda::layout {

struct Place {
  int row, column;
};

// TMA's and wgmma's swizzle of shared memory: the number of the 128 bytes is XORed into that of the
// 16 bytes within them. bits: 0, 1, 2, 3 for rows of 16, 32, 64, 128 bytes.
constexpr uint32_t swizzled(uint32_t address, int bits) {
  return address ^ (address >> 7 & ((1u << bits) - 1)) << 4;
}

// Element `index` of a thread of an operand of mma or wgmma with `rows` rows. Core matrices have 8
// rows of `core_columns` elements (16 bytes; of sums, 8), of which lane 4 r + t has a quarter of
// row r; a thread's elements go down the rows of a warp's 16 first, then along.
constexpr Place fragment_place(int rows, int core_columns, int thread, int index) {
  const int per_lane = core_columns / 4, core = index / per_lane, lane = thread % 32;
  const int cores_down = (rows < 16 ? rows : 16) / 8;
  return {thread / 32 * 16 + lane / 4 + core % cores_down * 8,
          lane % 4 * per_lane + core / cores_down * core_columns + index % per_lane};
}

// Tile `index` of rows x columns of them: down a group of rows first, then to the next column.
constexpr Place grouped_tile(int index, int rows, int columns, int group) {
  const int first = index / (group * columns) * group;
  const int height = rows - first < group ? rows - first : group, within = index - first * columns;
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
