// A product with a packed 4-bit weight on a GPU. Nothing here needs the CUDA toolkit.
#pragma once

#include <cstdint>

#include "common/activation.h"
#include "common/dtype.h"
#include "w4/packed_layout.h"

namespace xgemm::cuda::w4a16 {

// A packed weight [n, k]: its bytes, and the layout that says what they mean.
struct Weight {
  const uint8_t* data = nullptr;  // aligned to 16 bytes
  w4::Layout layout{};
  bool bf16_scales = false;  // scales are bf16, else fp16; zeros are always fp16
};

// D[m, n] = activation(X[m, k] W^T + bias[n]), fp32 accumulation, rounded once to `dtype`.
struct Problem {
  int64_t m = 0;
  Weight weight;
  DType dtype = DType::kF16;                   // of x, bias and d
  const void* x = nullptr;                     // [m, k]
  int64_t x_row_stride = 0, x_col_stride = 1;  // elements
  const int32_t* perm = nullptr;  // [k] or null: channel j of W multiplies x[:, perm[j]]; outside
                                  // of [0, k) it stands for a column of zeros
  const void* bias = nullptr;     // [n], bias_stride elements apart, or null
  int64_t bias_stride = 1;
  Activation activation = Activation::kNone;
  void* d = nullptr;                           // [m, n]
  int64_t d_row_stride = 0, d_col_stride = 1;  // elements
  bool batch_invariant = false;                // a row's bits do not depend on m
  // The wgmma kernel may start, and read the weight (but nothing else), before earlier work in the
  // stream has ended: programmatic dependent launch. The skinny kernel always starts early, and
  // then waits.
  bool overlaps_previous = false;
};

// The commonest format, for which some kernels are compiled: groups of a unit's channels, no zero
// points, fp16 scales. With bf16 activations scales may be of either type: those kernels ask which.
inline bool is_plain(const Problem& p) {
  return p.weight.layout.groups_per_unit() == 1 && !p.weight.layout.zeros &&
         (p.dtype == DType::kBF16 || !p.weight.bf16_scales);
}

}  // namespace xgemm::cuda::w4a16
