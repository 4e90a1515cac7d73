// What goes before and after the product of a mixture of experts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/activation.h"
#include "cuda/w4a16/grouped/api.h"

namespace xgemm::cuda::w4a16::grouped {

// to[s] = the row of slot s of an expert, its channels in the expert's order, then zeros.
struct CopyRows {
  int experts, slots, row_divisor;
  int64_t k;
  const int32_t* sorted;
  const int32_t* perm;  // [experts, k] or null
  const void* x;        // 2 bytes an element
  int64_t x_row_stride;
  void* to;  // [slots, to_row_stride]
  int64_t to_row_stride;
};
Status copy_rows(const CopyRows& copy, cudaStream_t stream);

// y[s, j] = activation(x[s, j]) x[s, columns + j], fp16 or bf16.
struct Gate {
  int64_t slots, columns;
  DType dtype;
  Activation activation;
  const void* x;
  void* y;
};
Status gate(const Gate& gate, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::grouped
