// Dense matrix products on the CPU: fp32 accumulation, any strides, fp16/bf16/fp32 operands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/activation.h"
#include "common/dtype.h"
#include "common/parallel.h"
#include "cpu/panel_source.h"

namespace xgemm::cpu {

// Element (i, j) is at data + i * row_stride + j * col_stride, in elements; strides may be 0 or
// negative.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0, col_stride = 0;
};
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0, col_stride = 0;
};

// One batch dimension: its extent and the strides (in elements) of the four operands along it.
struct BatchDim {
  int64_t size, a, b, c, d;
};

// D = activation(alpha * A B + beta * C + bias), rounded once to D's type. C may be D itself (same
// pointer and strides); it is not read when beta is 0. Products with K == 0 are 0.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  ConstMatrix a;                          // [m, k]
  ConstMatrix b;                          // [k, n]; unused where b_source is set
  const PanelSource* b_source = nullptr;  // not owned; no batch
  ConstMatrix c;                          // [m, n]; read when beta != 0
  Matrix d;                               // [m, n]
  float alpha = 1.0f, beta = 0.0f;
  const void* bias = nullptr;  // [n], bias_stride apart, or null
  DType bias_dtype = DType::kF32;
  int64_t bias_stride = 1;
  Activation activation = Activation::kNone;
  std::vector<BatchDim> batch;  // outermost first; empty: one product
};

void gemm(const GemmProblem& problem, const Parallel& parallel);

// The kernel and blocking that `problem` gets, for people.
std::string explain_gemm(const GemmProblem& problem, int num_threads);
// The same as a JSON object.
std::string explain_gemm_json(const GemmProblem& problem, int num_threads);

}  // namespace xgemm::cpu
