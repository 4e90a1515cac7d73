// How X comes to registers and Y to wgmma's descriptors, and their parts.
#pragma once

#include "cuda/gemm/tf32/plan.h"
#include "cuda/gemm/tf32/sm90/params.h"
#include "cuda/gemm/tf32/split.cuh"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/ptx/wgmma_tf32.h"

namespace xgemm::cuda::gemm::tf32::sm90 {

// What the kernel is compiled for. kThree: three products of parts, else one.
template <bool kThree_, int kRows_, int kColumns_, int kCluster_>
struct TileConfig {
  static constexpr bool kThree = kThree_;
  static constexpr int kRows = kRows_, kColumns = kColumns_;  // of X, of Y
  static constexpr int kCluster = kCluster_;                  // CTAs along X that share Y
  static constexpr int kSubs = kRows / (64 * kConsumers);     // of 64 rows, a consumer
  static constexpr int kStages = stages(kThree, {kRows, kColumns});
  static_assert(kThree || kSubs == 1, "one product has one set of accumulators");
};

inline constexpr int kBoxRows = 32;  // of an X that lies along its rows: 128 bytes, a swizzle's row

// Fragments of X from a stage. Where X lies along k the tile is [row][kBlockK], else [box][k][32
// rows]; with the 128-byte swizzle, both.
template <typename Tile, bool kAlongRows>
class XReader {
 public:
  __device__ XReader(int consumer, int thread) : consumer_(consumer), warp_(thread / 32) {
    const int group = thread % 32 / 4, t = thread % 4;
    if constexpr (kAlongRows) {
      const int box = consumer * Tile::kSubs * 2 + warp_ / 2;
      const int chunk = row(warp_, group) % kBoxRows / 4;
      offset_ = box * kBoxRows * kBlockK * 4 + t * 128 + (chunk ^ t) * 16 + group % 4 * 4;
    } else {
      offset_ = (consumer * Tile::kSubs * 64 + row(warp_, group)) * 128 + group * 16 + t * 4;
    }
  }

  // a[i]: slot group + 8 (i % 2) of the warp's 16 rows, k = 8 k8 + t + 4 (i / 2).
  __device__ void load(float (&a)[4], const float* stage, int sub, int k8) const {
    const char* base = reinterpret_cast<const char*>(stage) + sub * 64 * 128;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int high_row = i % 2, high_k = i / 2;
      // The swizzle is a XOR within 128 bytes, so another chunk of them is another XOR.
      const int at = kAlongRows ? (offset_ ^ high_row * 16 ^ high_k * 64) + k8 * 1024 + high_k * 512
                                : (offset_ ^ (2 * k8 + high_k) * 16) + high_row * 1024;
      a[i] = *reinterpret_cast<const float*>(base + at);
    }
  }

  // The tile's row in slot `slot` of this thread's warp.
  __device__ int tile_row(int sub, int slot) const {
    return (consumer_ * Tile::kSubs + sub) * 64 + row(warp_, slot);
  }

 private:
  // Of the consumer's 64 rows. Along rows a warp's slots are spread so that the lanes' reads at
  // four k, which XOR different chunks, hit different banks.
  __device__ static int row(int warp, int slot) {
    if (!kAlongRows) return warp * 16 + slot;
    return warp / 2 * 32 + slot / 4 % 2 * 16 + (warp % 2 * 2 + slot / 8) * 4 + slot % 4;
  }

  int consumer_, warp_, offset_;
};

// Of rows along k in a stage, [row][kBlockK].
__device__ inline uint64_t k_descriptor(const float* tile) {
  return ptx::wgmma_descriptor(tile, 16, 1024);
}
inline constexpr int kDescriptorStepK8 = 32 / 16;

}  // namespace xgemm::cuda::gemm::tf32::sm90
