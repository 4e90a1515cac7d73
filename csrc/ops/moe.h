// Products of a mixture of experts over packed 4-bit weights: what the op and the CPU's and CUDA's
// halves share.
#pragma once

#include <optional>

#include "common/gated.h"
#include "cpu/w4a16/api.h"
#include "ops/checks.h"

namespace xgemm::ops {

// One call, checked. Slot s multiplies row s / row_divisor of x by the weight of its expert.
struct MoeCall {
  int64_t experts = 0, tokens = 0, top_k = 1;
  cpu::W4Weight weight;             // of expert 0
  int64_t expert_bytes = 0;         // from one expert's weight to the next one's
  DType dtype = DType::kF16;        // of x, bias and the result
  const void* x = nullptr;          // [tokens or slots, k], columns are neighbours
  int64_t x_row_stride = 0;         // elements
  int64_t row_divisor = 1;          // top_k where x has a row for each token, else 1
  const int32_t* sorted = nullptr;  // [experts + 1] bounds, then [slots]
  const void* bias = nullptr;       // [experts, n] or null
  const int32_t* perm = nullptr;    // [experts, k] or null
  const void* weights = nullptr;    // [tokens, top_k] or null
  DType weights_dtype = DType::kF32;
  GatedActivation activation = GatedActivation::kNone;
  void* result = nullptr;  // [slots, columns()], or [tokens, columns()] where there are weights

  int64_t slots() const { return tokens * top_k; }
  int64_t columns() const { return is_gated(activation) ? weight.layout.n / 2 : weight.layout.n; }
};

void run_moe_cpu(const char* op, const MoeCall& call, const TensorView& like);
#ifdef XGEMM_WITH_CUDA
void run_moe_cuda(const char* op, const MoeCall& call, const TensorView& like);
void sort_cuda(const char* op, const TensorView& ids, int64_t experts, int32_t* sorted);
#endif

}  // namespace xgemm::ops
