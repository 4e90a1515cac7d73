// A dense matrix product, on a CPU or a GPU.
#pragma once

#include <cstdint>

#include "common/activation.h"
#include "common/dtype.h"
#include "common/precision.h"

namespace xgemm {

// Element (i, j) is at data + i * row_stride + j * col_stride, in elements; strides may be 0 or
// negative.
struct GemmOperand {
  const void* data = nullptr;
  int64_t row_stride = 0, col_stride = 0;
};

// One batch dimension: its extent and the strides (in elements) of the operands along it.
struct BatchDim {
  int64_t size, a, b, c, d;
};
inline constexpr int kMaxBatchDims = 8;

// D = activation(alpha A B + beta C + bias), fp32 accumulation, one rounding to `dtype`. C may be D
// itself (same address and strides); it is not read where beta is 0. K == 0 makes A B zero.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kF32;               // of all operands: fp16, bf16 or fp32
  Precision precision = Precision::kIeee;  // of products of fp32 on a GPU
  GemmOperand a;                           // [m, k]
  GemmOperand b;                           // [k, n]
  GemmOperand c;                           // [m, n]
  void* d = nullptr;                       // [m, n]
  int64_t d_row_stride = 0, d_col_stride = 1;
  float alpha = 1.0f, beta = 0.0f;
  const void* bias = nullptr;  // [n], bias_stride apart, or null
  int64_t bias_stride = 1;
  Activation activation = Activation::kNone;
  int batch_dims = 0;
  BatchDim batch[kMaxBatchDims] = {};  // outermost first; the first batch_dims count
};

}  // namespace xgemm
