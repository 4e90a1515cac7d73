// The products of a mixture of experts on a GPU. Nothing here needs the CUDA toolkit.
#pragma once

#include <cstdint>

#include "common/device.h"
#include "common/gated.h"
#include "cuda/w4a16/problem.h"

namespace xgemm::cuda::w4a16::grouped {

// Which kernel multiplies: to measure one, or test it.
enum class Kernel { kAny, kMmaSync, kWgmma };
struct Wanted {
  Kernel kernel = Kernel::kAny;
  int block_m = 0;  // of its tiles, or 0
};

// y[s] = activation(x[s / row_divisor] W_e^T + bias[e]) for each slot s of an expert e, fp32
// accumulation, rounded once to `dtype`; 0 for the slots of no expert. Which slots an expert has
// is on the device.
struct Problem {
  int64_t experts = 0, slots = 0;
  Weight weight;              // of expert 0; those of the others follow each other
  bool fp4 = false;           // codes are E2M1: groups of 32, bf16 scales, no zeros
  DType dtype = DType::kF16;  // of x, bias and y
  const void* x = nullptr;    // [slots / row_divisor, k], columns are neighbours
  int64_t x_row_stride = 0;   // elements
  int64_t row_divisor = 1;
  const int32_t* sorted = nullptr;  // [experts + 1] bounds, then [slots]: moe_sort's result
  const void* bias = nullptr;       // [experts, n] or null
  const int32_t* perm = nullptr;    // [experts, k] or null: channel j of W_e multiplies
                                    // x[:, perm[e, j]]; outside of [0, k) it stands for zeros
  GatedActivation activation = GatedActivation::kNone;
  void* y = nullptr;  // [slots, columns()]
  Wanted wanted;      // where it can be had

  int64_t columns() const { return is_gated(activation) ? weight.layout.n / 2 : weight.layout.n; }
};

// How the kernel runs, from the sizes alone.
struct Plan {
  bool wgmma;       // by wgmma, else by mma.sync: the same bits
  int block_m;      // rows of an expert that a CTA multiplies
  int ctas;         // by wgmma, which take the tiles by turns
  int stages;       // by mma.sync, of each warp's pipeline
  int64_t tiles;    // at the most, over all experts
  bool copy_x;      // into rows that whole copies can read, in the order of the expert's channels
  bool gate_after;  // by a kernel of its own: the halves of columns are not aligned
  bool overlap;     // starts before earlier work in the stream has ended: Hopper
  int64_t x_row_stride;     // of the copy, elements
  int64_t workspace_bytes;  // the copy, then the product before the gate
  int64_t product_offset;   // bytes
};

// Whether the kernel for Hopper by wgmma takes the problem.
bool takes_wgmma(const Problem& problem, const DeviceInfo& device);

// fp32 problems need none, and get the plan of tiles alone.
Plan make_plan(const Problem& problem, const DeviceInfo& device);

}  // namespace xgemm::cuda::w4a16::grouped
