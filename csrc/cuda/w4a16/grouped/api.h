// Host side of the kernels for a mixture of experts.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/w4a16/grouped/problem.h"

namespace xgemm::cuda::w4a16::grouped {

// On the current device. `plan` is make_plan's for this problem, which is not empty in slots and
// columns; `workspace` has plan.workspace_bytes bytes, aligned to 256, with any contents.
Status launch(const Problem& problem, const Plan& plan, void* workspace, cudaStream_t stream);

// result[t] = the sum over j of weights[t, j] y[t top_k + j], in the order of j, in fp32.
struct Combine {
  int64_t tokens = 0, top_k = 1, columns = 0;
  DType dtype = DType::kF16;      // of y and the result
  const void* y = nullptr;        // [tokens top_k, columns]
  const void* weights = nullptr;  // [tokens, top_k]
  DType weights_dtype = DType::kF32;
  void* result = nullptr;  // [tokens, columns]
};
Status launch(const Combine& combine, const DeviceInfo& device, cudaStream_t stream);

// sorted[experts + 1 + slots] as moe_sort's result.
struct Sort {
  const void* ids = nullptr;  // [slots], int32, or int64 where `wide`
  bool wide = false;
  int64_t slots = 0;
  int experts = 0;
  int32_t* sorted = nullptr;
};
Status launch(const Sort& sort, const DeviceInfo& device, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::grouped
