// From global memory to a stage: rows of X, swizzled, and whole units of the weight as they are.
#pragma once

#include "cuda/ptx/cp_async.h"
#include "cuda/tile/layout_index.h"
#include "cuda/w4a16/sm80/params.h"
#include "cuda/w4a16/sm80/tile.h"

namespace xgemm::cuda::w4a16::sm80 {

// What a CTA works on: the tile at (m, n), and the units [unit, unit_end) of K.
struct Work {
  int64_t m, n;
  int unit, unit_end, split;

  template <typename Tile>
  __device__ static Work at(const Params& params, uint32_t index) {
    Work work;
    layout::PlaceOf<uint32_t> place = {0, index};
    work.split = 0;
    if (params.splits > 1) {
      const uint32_t tiles = params.tiles_m * params.tiles_n;
      work.split = static_cast<int>(index / tiles);
      place.column = index % tiles;
    }
    if (params.tiles_m > 1) {
      constexpr uint32_t kGroupRows = 2048 / Tile::kBlockM;
      place =
          layout::grouped_tile<uint32_t>(place.column, params.tiles_m, params.tiles_n, kGroupRows);
    }
    work.m = int64_t{place.row} * Tile::kBlockM;
    work.n = int64_t{place.column} * Tile::kBlockN;
    work.unit = work.split * params.units_per_split;
    work.unit_end = min(work.unit + params.units_per_split, params.units);
    return work;
  }
};

// Byte offset of 8 values of k within the [rows, 128] of X that go with a unit. XOR the row into
// the 16-byte chunk: the 8 rows of an ldmatrix then lie in 8 different groups of 4 banks.
__device__ constexpr int x_offset(int row, int chunk) {
  return row * kXRowBytes + (chunk ^ layout::swizzle_xor(row, 3)) * 16;
}

template <typename Tile>
class Loader {
 public:
  __device__ Loader(const Params& params, const Work& work, uint32_t pipeline, int thread)
      : pipeline_(pipeline), stage_bytes_(Tile::stage_bytes(params.unit_bytes)) {
    const int line = thread / kChunks, chunk = thread % kChunks;  // of [kWarpsK][kBlockM] lines
    const int row = line % Tile::kBlockM, k = line / Tile::kBlockM * kUnitK + chunk * 8;
    x_ = static_cast<const char*>(params.x) +
         ((work.m + row) * params.x_row_stride + int64_t{work.unit} * kUnitK + k) * 2;
    x_row_step_ = params.x_row_stride * kRowStep * 2;
    x_smem_ = x_offset(line, chunk);
    rows_left_ = static_cast<int>(min(params.m - work.m, int64_t{Tile::kBlockM})) - row;
    k_left_ = params.k - work.unit * kUnitK - k;

    const int64_t weight_row = work.n / kUnitColumns + thread / kThreadsPerUnitRow;
    units_left_ = weight_row < params.weight_rows ? work.unit_end - work.unit : 0;
    unit_bytes_ = params.unit_bytes;
    const int first = thread % kThreadsPerUnitRow * 16;
    weight_ = params.weight + weight_row * params.row_bytes +
              int64_t{work.unit} * params.unit_bytes + first;
    weight_smem_ =
        Tile::kXBytes + thread / kThreadsPerUnitRow * Tile::kWarpsK * params.unit_bytes + first;
    first_ = first;
  }

  // Starts the copy of the next kWarpsK units of k to stage `stage`.
  __device__ void fetch(int stage) {
    const uint32_t to = pipeline_ + stage * stage_bytes_;
    const int bytes = min(units_left_, Tile::kWarpsK) * unit_bytes_ - first_;
#pragma unroll  // a loop with a branch would be 60 instructions more
    for (int i = 0; i < kMaxWeightCopies; ++i) {
      const int at = i * kThreadsPerUnitRow * 16;
      if (at < bytes) ptx::cp_async<16>(to + weight_smem_ + at, weight_ + at, 16);
    }
#pragma unroll
    for (int i = 0; i < kXPerThread; ++i) {
      const int row = i * kRowStep % Tile::kBlockM, unit = i * kRowStep / Tile::kBlockM;
      // Of the chunk's 8 values of k; before they are bytes, since twice K may not be an int.
      const int valid = row < rows_left_ ? max(min(k_left_ - unit * kUnitK, 8), 0) : 0;
      ptx::cp_async<16>(
          to + x_smem_ + i * kRowStep * kXRowBytes,
          x_ + i * kRowStep % Tile::kBlockM / kRowStep * x_row_step_ + unit * kXRowBytes,
          valid * 2);
    }
    weight_ += Tile::kWarpsK * unit_bytes_;
    units_left_ -= Tile::kWarpsK;
    x_ += Tile::kWarpsK * kXRowBytes;
    k_left_ -= Tile::kWarpsK * kUnitK;
  }

 private:
  static constexpr int kChunks = kXRowBytes / 16;            // of X, in a row of a unit's k
  static constexpr int kRowStep = Tile::kThreads / kChunks;  // between a thread's chunks
  static constexpr int kXPerThread = Tile::kXBytes / 16 / Tile::kThreads;
  static constexpr int kThreadsPerUnitRow = Tile::kThreads / Tile::kUnitRows;
  static constexpr int kMaxWeightCopies =
      ceil_div(Tile::kWarpsK * kMaxUnitBytes, kThreadsPerUnitRow * 16);
  static_assert(kRowStep % 8 == 0, "all chunks of a thread have the same swizzle");
  static_assert(Tile::kBlockM % kRowStep == 0 || kRowStep % Tile::kBlockM == 0,
                "whole rounds make a unit, or whole units a round");

  uint32_t pipeline_;
  int stage_bytes_;
  const char* x_;
  int64_t x_row_step_;  // bytes
  int x_smem_, rows_left_, k_left_;
  const uint8_t* weight_;
  int weight_smem_, first_, units_left_, unit_bytes_;
};

}  // namespace xgemm::cuda::w4a16::sm80
