// An operand's way from global memory to wgmma: TMA boxes with the 128-byte swizzle, and the
// descriptors that read them.
#pragma once

#include <cuda.h>

#include "cuda/gemm/sm90/operand.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma.h"

namespace xgemm::cuda::gemm::sm90 {

struct BatchPosition {
  int inner, outer;
};

inline constexpr int kBoxBytes = kSwizzleElements * kBlockK * 2;  // of an MN-major operand

// `policy`: of L2. `ctas`: those of the cluster that get it; 0: this one alone.
__device__ inline void load_box(void* dst, const CUtensorMap* map, uint64_t* full, uint64_t policy,
                                uint16_t ctas, int inner, int outer, int chunk,
                                BatchPosition batch) {
  if (ctas != 0) {
    ptx::tma_load_multicast_5d(dst, map, full, policy, ctas, inner, outer, chunk, batch.inner,
                               batch.outer);
  } else {
    ptx::tma_load_5d(dst, map, full, policy, inner, outer, chunk, batch.inner, batch.outer);
  }
}

// Loads share `share` of [kRows, kBlockK] of an operand into the stage at `dst` of this CTA or,
// with kToAll, of every CTA of the cluster. Where K is contiguous the tile is whole rows, and a
// share some of them. Else it is chunks 64 wide, several of them a load where the map is `chunked`.
template <int kRows, bool kMnMajor, int kSharers, bool kToAll = (kSharers > 1), typename T>
__device__ inline void load_operand(T* dst, const CUtensorMap* map, bool chunked, uint64_t* full,
                                    uint64_t policy, int row, int k, BatchPosition batch,
                                    int share) {
  constexpr uint16_t kAll = kToAll ? (1 << kSharers) - 1 : 0;
  if constexpr (kMnMajor) {
    constexpr int kChunks = kRows / kSwizzleElements, kBox = chunks_per_load(kRows, kSharers);
    const int step = chunked ? kBox : 1;
#pragma unroll 1
    for (int i = share * step; i < kChunks; i += kSharers * step) {
      T* box = dst + i * kBlockK * kSwizzleElements;
      const int inner = chunked ? 0 : row + i * kSwizzleElements;
      const int chunk = chunked ? row / kSwizzleElements + i : 0;
      load_box(box, map, full, policy, kAll, inner, k, chunk, batch);
    }
  } else {
    constexpr int kHeight = kRows / kSharers;
    const int first = share * kHeight;
    load_box(dst + first * kBlockK, map, full, policy, kAll, k, row + first, 0, batch);
  }
}

// Descriptor of an operand's tile of stage 0, from row (or column of B) `row`, a multiple of 64.
template <bool kMnMajor, typename T>
__device__ inline uint64_t operand_descriptor(const T* tile, int row) {
  const char* base = reinterpret_cast<const char*>(tile) + row / 64 * kBoxBytes;
  return kMnMajor ? ptx::wgmma_descriptor(base, kBoxBytes, 1024)
                  : ptx::wgmma_descriptor(base, 16, 1024);
}

// What a descriptor's address field, in units of 16 bytes, grows by over 16 k.
template <bool kMnMajor>
inline constexpr int kDescriptorStepK16 = (kMnMajor ? 16 * 128 : 32) / 16;

}  // namespace xgemm::cuda::gemm::sm90
