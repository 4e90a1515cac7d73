// Tensor maps of a product's operands.
#pragma once

#include "common/gemm_problem.h"
#include "cuda/gemm/sm90/tensor_map.h"

namespace xgemm::cuda::gemm::sm90 {

// A batch's dimensions along one operand, the inner one first: extents and strides. Where the
// stride is 0 the operand is the same all along the dimension.
struct Batch {
  int64_t extent[2], stride[2];
};

// An operand as the kernel sees it: its MN extent, its strides, and how a load takes it.
struct Loads {
  const void* data;
  int64_t mn, mn_stride, k_stride;
  Batch batch;
  bool mn_major, chunked;
  int rows, sharers;
};

bool encode_operand(CUtensorMap* map, const GemmProblem& problem, const Loads& operand);

Batch batch_of(const GemmProblem& problem, int64_t BatchDim::* stride);

}  // namespace xgemm::cuda::gemm::sm90
