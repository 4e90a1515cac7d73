// The order of tiles: groups of rows, column by column, so that tiles that are computed at the same
// time share operands in L2.
#pragma once

namespace xgemm::cuda {

// A tile's place, in tiles.
template <typename Index>
struct TilePlace {
  Index row, column;
};

// Tile `index` of [tiles_m, tiles_n], in groups of `group_rows` rows of tiles; the last group may
// have fewer. Index: uint32_t where there are that few, as a division of 64 bits is a call.
template <typename Index>
__device__ __forceinline__ TilePlace<Index> place_in_groups(Index index, Index tiles_m,
                                                            Index tiles_n, Index group_rows) {
  const Index first = index / (group_rows * tiles_n) * group_rows;
  const Index height = min(static_cast<Index>(tiles_m - first), group_rows);
  const Index in_group = index - first * tiles_n;
  return {first + in_group % height, in_group / height};
}

}  // namespace xgemm::cuda
