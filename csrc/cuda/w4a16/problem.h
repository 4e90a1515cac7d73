// A product with a packed 4-bit weight on a GPU, and the kernel it gets. Nothing here needs the
// CUDA toolkit.
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
  // kSm90Wgmma may start, and read the weight (but nothing else), before earlier work in the stream
  // has ended: programmatic dependent launch. kSm90Skinny always starts early, and then waits.
  bool overlaps_previous = false;
};

// The commonest format, for which some kernels are compiled: groups of a unit's channels, no zero
// points, fp16 scales. With bf16 activations scales may be of either type: those kernels ask which.
inline bool is_plain(const Problem& p) {
  return p.weight.layout.groups_per_unit() == 1 && !p.weight.layout.zeros &&
         (p.dtype == DType::kBF16 || !p.weight.bf16_scales);
}

enum class Kernel {
  kSm80,        // units by cp.async, mma.sync: any format, GPU from Ampere on, stride and alignment
  kSm90Skinny,  // a stream over the weight by bulk copies, mma.sync, K split over warps and a
                // cluster
  kSm90RegisterResident,  // all of a small weight in registers, asked for at once, mma.sync
  kSm90Wgmma,             // wgmma with the weight dequantized in registers, TMA, persistent tiles
};

struct Config {
  Kernel kernel = Kernel::kSm90Skinny;
  int block_m = 0;              // rows of X that a CTA holds
  int block_n = 0;              // columns of a tile
  int warps = 0;                // of a CTA
  int stages = 0;               // of the ring that a warp, or a CTA, keeps full
  int cluster = 1;              // CTAs that share K, or an operand
  int splits = 1;               // of K: kSm80 by CTAs, kSm90Wgmma by CTAs of a cluster
  int ctas = 0;                 // of the grid, at most
  bool stream_k = false;        // clusters take stream-K
  bool copy_x = false;          // first, in perm's order, so that whole copies can read it
  int64_t workspace_bytes = 0;  // that launch wants
  const char* reason = "";
};

}  // namespace xgemm::cuda::w4a16
