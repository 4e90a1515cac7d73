// AMX: a block of D is 4 tile registers, and 2 each hold the tiles of A and B.
#include "cpu/isa/amx.h"
#include "cpu/sgemm/bf16.h"

namespace xgemm::cpu::dense {
namespace {

void begin() {
  static constexpr amx::TileConfig kConfig;
  amx::configure(kConfig);
}

void end() { amx::release(); }

template <int kRows, int kCols>
void multiply_block(const Bf16Block& block) {
  constexpr int64_t kStride = 64, kSumStride = kBlockExtent * sizeof(float);
  float* const sums = block.sums;
  float* const below = sums + kTileExtent * kBlockExtent;
  if (block.accumulate) {
    XGEMM_TILE_LOAD(0, sums, kSumStride);
    if (kCols == 2) XGEMM_TILE_LOAD(1, sums + kTileExtent, kSumStride);
    if (kRows == 2) XGEMM_TILE_LOAD(2, below, kSumStride);
    if (kRows == 2 && kCols == 2) XGEMM_TILE_LOAD(3, below + kTileExtent, kSumStride);
  } else {
    XGEMM_TILE_ZERO(0);
    XGEMM_TILE_ZERO(1);
    XGEMM_TILE_ZERO(2);
    XGEMM_TILE_ZERO(3);
  }
  const uint16_t *a = block.a, *b = block.b;
  for (int64_t step = 0; step < block.steps; ++step, a += kTileElements, b += kTileElements) {
    XGEMM_TILE_LOAD(6, b, kStride);
    XGEMM_TILE_LOAD(4, a, kStride);
    XGEMM_TILE_MULTIPLY(0, 4, 6);
    if (kCols == 2) {
      XGEMM_TILE_LOAD(7, b + block.b_next, kStride);
      XGEMM_TILE_MULTIPLY(1, 4, 7);
    }
    if (kRows == 2) {
      XGEMM_TILE_LOAD(5, a + block.a_next, kStride);
      XGEMM_TILE_MULTIPLY(2, 5, 6);
    }
    if (kRows == 2 && kCols == 2) XGEMM_TILE_MULTIPLY(3, 5, 7);
  }
  XGEMM_TILE_STORE(0, sums, kSumStride);
  if (kCols == 2) XGEMM_TILE_STORE(1, sums + kTileExtent, kSumStride);
  if (kRows == 2) XGEMM_TILE_STORE(2, below, kSumStride);
  if (kRows == 2 && kCols == 2) XGEMM_TILE_STORE(3, below + kTileExtent, kSumStride);
}

void multiply(const Bf16Block& block) {
  if (block.row_tiles == 2) {
    return block.col_tiles == 2 ? multiply_block<2, 2>(block) : multiply_block<2, 1>(block);
  }
  return block.col_tiles == 2 ? multiply_block<1, 2>(block) : multiply_block<1, 1>(block);
}

}  // namespace

constexpr Bf16Kernels kAmxKernels = {.isa = Isa::kAmx,
                                     .least_extent = 4,
                                     .apart_extent = 0,
                                     .begin = begin,
                                     .end = end,
                                     .multiply = multiply};

}  // namespace xgemm::cpu::dense
