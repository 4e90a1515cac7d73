// Copies many rows of X so that TMA can read them, with their channels in the weight's order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/math.h"
#include "common/status.h"
#include "cuda/w4a16/sm90/wgmma/tile.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

struct RowGather {
  const uint16_t* src;  // [rows, channels], strides in elements
  int64_t row_stride, col_stride;
  const int32_t* perm;  // [channels]: from where in src a channel comes; outside of it: 0
  uint16_t* dst;        // [rows, pitch_of(channels)], aligned to 16 bytes; all of it is written
  int64_t rows;
  int channels;            // at most kMaxGathered
  bool overlaps_previous;  // programmatic dependent launch
  // Set by gather_rows: whether src and perm are aligned for wide loads.
  bool aligned = false, perm_aligned = false;
};

// Two rows of so many fit into shared memory.
inline constexpr int kMaxGathered = kMaxSmemBytes / 4;
static_assert(kMaxGathered % 16 == 0, "and four rows of half as many");

XGEMM_HOST_DEVICE inline int64_t pitch_of(int64_t channels) {
  return round_up<int64_t>(channels, 8);
}

Status gather_rows(RowGather job, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
