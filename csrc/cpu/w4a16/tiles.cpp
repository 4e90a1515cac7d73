#include "cpu/w4a16/tiles.h"

#include <algorithm>
#include <cmath>

#include "cpu/w4a16/rows.h"

namespace xgemm::cpu::w4a16 {
namespace {

// Floats that the tiles and the sums of a block take.
struct BlockFloats {
  int64_t tiles, sums;
  BlockFloats(const w4::Layout& layout, const PartBlock& block) {
    tiles = layout.units() * block.row_tiles * kStepsPerUnit * block.parts * kTileElements / 2;
    const int64_t groups = layout.units() * kStepsPerUnit / steps_per_group(layout);
    sums = round_up<int64_t>(groups * block.padded_rows(), 16);
  }
  int64_t total() const { return tiles + sums; }
};

std::vector<PartBlock> make_blocks(const W4Problem& problem, int64_t count) {
  std::vector<PartBlock> blocks(static_cast<size_t>(ceil_div<int64_t>(count, kPartRows)));
  for (PartBlock& block : blocks) {
    const int64_t done = (&block - blocks.data()) * kPartRows;
    block.rows = static_cast<int>(std::min<int64_t>(count - done, kPartRows));
    block.row_tiles = ceil_div(block.rows, kTileRows);
    block.tile_rows = ceil_div(block.rows, block.row_tiles);
    block.parts = parts_of(problem.dtype);
  }
  return blocks;
}

int64_t floats_of(const W4Problem& problem, const std::vector<PartBlock>& blocks) {
  int64_t total = 0;
  for (const PartBlock& block : blocks) total += BlockFloats(problem.weight.layout, block).total();
  return total;
}

// Slots from block.rows on are the zeros that fill up the last tile.
void arrange(const W4Problem& problem, int64_t row, int slot, PartBlock& block) {
  const w4::Layout& layout = problem.weight.layout;
  const Buffer scratch(Slot::kPartial, padded_k(problem));
  float* values = scratch.data();
  float power = 1.0f;
  bool finite = false;
  if (slot < block.rows) {
    const float largest = load_row_avx512(problem, row, values);
    finite = std::isfinite(largest);
    power = safe_power(largest);
    block.finite[slot] = finite;
    block.unscale[slot] = 1.0f / power;
  }
  if (!finite) std::fill(values, values + padded_k(problem), 0.0f);
  arrange_parts_avx512(layout, values, power, slot, block);
}

}  // namespace

RowParts::RowParts(const W4Problem& problem, int64_t first, int64_t count, const Parallel& parallel)
    : memory_(Slot::kArrangedRows, floats_of(problem, make_blocks(problem, count))),
      blocks_(make_blocks(problem, count)) {
  float* next = memory_.data();
  for (PartBlock& block : blocks_) {
    const BlockFloats floats(problem.weight.layout, block);
    block.x = reinterpret_cast<uint16_t*>(next);
    block.sums = next + floats.tiles;
    next += floats.total();
  }
  const int64_t slots = (std::ssize(blocks_) - 1) * kPartRows + blocks_.back().padded_rows();
  const auto one = [&](int64_t i) {
    arrange(problem, first + i, static_cast<int>(i % kPartRows), blocks_[i / kPartRows]);
  };
  const bool alone = slots * padded_k(problem) <= kAloneElements;
  alone ? Parallel(1).for_each(slots, one) : parallel.for_each(slots, one);
}

}  // namespace xgemm::cpu::w4a16
