// How X comes to registers and Y to wgmma's descriptors, and their parts.
#pragma once

#include "cuda/gemm/tf32/plan.h"
#include "cuda/gemm/tf32/sm90/params.h"
#include "cuda/gemm/tf32/split.cuh"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/ptx/wgmma_tf32.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::gemm::tf32::sm90 {

// What the kernel is compiled for. kThree: three products of parts, else one.
template <bool kThree_, int kRows_, int kColumns_>
struct TileConfig {
  static constexpr bool kThree = kThree_;
  static constexpr int kRows = kRows_, kColumns = kColumns_;  // of X, of Y
  static constexpr int kSubs = kRows / (64 * kConsumers);     // of 64 rows, a consumer
  static constexpr int kStages = stages(kThree, {kRows, kColumns});
  static_assert(kThree || kSubs == 1, "one product has one set of accumulators");
};

inline constexpr int kBoxRows = 32;  // of an X that lies along its rows: 128 bytes, a swizzle's row

// Which rows of X the 16 slots of a warp's fragments are: lane 4 g + t has slots g and g + 8.
template <typename Tile, bool kXAlongRows>
class XRows {
 public:
  // Where X lies along its rows a lane's two are neighbours, so that it reads, and may store, both
  // at once; lanes whose g differ in this bit have rows that are 16 apart.
  static constexpr int kFarBit = kXAlongRows ? 2 : 0;

  __device__ XRows(int consumer, int thread) : consumer_(consumer), warp_(thread / 32) {}

  // Of the tile.
  __device__ int row(int sub, int slot) const {
    return (consumer_ * Tile::kSubs + sub) * 64 + consumer_row(slot);
  }

 private:
  // Of the consumer's 64. Along rows the two that are 16 apart keep reads at four k, whose chunks
  // of 16 bytes the swizzle permutes, in different banks.
  __device__ int consumer_row(int slot) const {
    if (!kXAlongRows) return warp_ * 16 + slot;
    const int g = slot % 8;
    return warp_ / 2 * 32 + g / 2 % 2 * 16 + warp_ % 2 * 8 + g / 4 * 4 + g % 2 * 2 + slot / 8;
  }

  int consumer_, warp_;
};

// Fragments of X from a stage. Where X lies along k the tile is [row][kBlockK], else [box][k][32
// rows]; with the 128-byte swizzle, both.
template <typename Tile, bool kXAlongRows>
class XReader {
 public:
  __device__ XReader(int consumer, int thread) {
    const int group = thread % 32 / 4, t = thread % 4;
    const int row = XRows<Tile, kXAlongRows>(consumer, thread).row(0, group);
    if constexpr (kXAlongRows) {
      const int chunk = row % kBoxRows / 4;
      offset_ = row / kBoxRows * kBoxRows * kBlockK * 4 + t * 128 +
                (chunk ^ layout::swizzle_xor(t, 3)) * 16 + row % 4 * 4;
    } else {
      offset_ = row * 128 + group * 16 + t * 4;
    }
  }

  // a[i]: slot group + 8 (i % 2) of the warp's 16 rows, k = 8 k8 + t + 4 (i / 2).
  __device__ void load(float (&a)[4], const float* stage, int sub, int k8) const {
    const char* base = reinterpret_cast<const char*>(stage) + sub * 64 * 128;
#pragma unroll
    for (int high_k = 0; high_k < 2; ++high_k) {
      // The swizzle is a XOR within 128 bytes, so another chunk of them is another XOR.
      if constexpr (kXAlongRows) {
        const float2 rows = *reinterpret_cast<const float2*>(base + (offset_ ^ high_k * 64) +
                                                             k8 * 1024 + high_k * 512);
        a[2 * high_k] = rows.x, a[2 * high_k + 1] = rows.y;
      } else {
        const char* at = base + (offset_ ^ (2 * k8 + high_k) * 16);
        a[2 * high_k] = *reinterpret_cast<const float*>(at);
        a[2 * high_k + 1] = *reinterpret_cast<const float*>(at + 1024);
      }
    }
  }

 private:
  int offset_;
};

// Of rows along k in a stage, [row][kBlockK].
__device__ inline uint64_t k_descriptor(const float* tile) {
  return ptx::wgmma_descriptor(tile, 16, 1024);
}
inline constexpr int kDescriptorStepK8 = 32 / 16;

}  // namespace xgemm::cuda::gemm::tf32::sm90
