// How split-K cuts K, where its partial sums are whole matrices in memory: [splits, batches, m,
// partial_stride] of fp32.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/math.h"

namespace xgemm::cuda::gemm {

inline constexpr int64_t kMaxKPerSplit = int64_t{1} << 30;  // a CTA counts its part in 32 bits

// Splits of K, none of which is empty.
struct Splits {
  int64_t k_each, count, workspace_bytes;
};

// Of `wanted` splits, at most; each is a multiple of block_k. Params: those of a family's kernels.
template <typename Params>
Splits splits_of(const Params& p, int64_t wanted, int64_t block_k) {
  const int64_t each = round_up<int64_t>(ceil_div<int64_t>(p.k, wanted), block_k);
  const int64_t count = p.k == 0 ? 1 : ceil_div<int64_t>(p.k, each);
  const int64_t workspace =
      count == 1 ? 0 : int64_t{4} * count * p.batches * p.m * p.partial_stride;
  return {each, count, workspace};
}

// So many there must be.
inline int64_t least_splits(int64_t k) {
  return std::max<int64_t>(ceil_div<int64_t>(k, kMaxKPerSplit), 1);
}

}  // namespace xgemm::cuda::gemm
