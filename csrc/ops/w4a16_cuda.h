// Products with a packed 4-bit weight on CUDA: what is put together from several families.
#pragma once

#include <optional>
#include <string>

#include "cpu/w4a16/api.h"
#include "ops/checks.h"
#include "ops/explain_form.h"

#ifdef XGEMM_WITH_CUDA
#include "cuda/w4a16/api.h"
#endif

namespace xgemm::ops {

#ifdef XGEMM_WITH_CUDA
inline cuda::w4a16::Weight cuda_weight(const cpu::W4Weight& weight) {
  return {.data = weight.data, .layout = weight.layout, .bf16_scales = weight.bf16_scales};
}

// A tensor [..., cols] as a matrix with one row stride; a copy where its leading dimensions have
// none in common.
struct CudaRows {
  CudaRows(const OwnedTensor& tensor, const TensorView& view, std::optional<int64_t> row_stride);
  const void* data;
  int64_t row_stride, col_stride;

 private:
  std::optional<Tensor> copy_;
};

// dst[...] = source, whatever strides dst has.
void copy_to(const OwnedTensor& dst, const Tensor& source);

// `like` is any operand; the problem is not empty in m and n.
void run_w4a16_cuda(const char* op, const cuda::w4a16::Problem& problem, const TensorView& like);

// d[m, k] = grad[m, n] W, contiguous, its channels where perm took them from.
struct W4Gradient {
  int64_t m = 0;
  cuda::w4a16::Weight weight;
  DType dtype = DType::kF16;
  const void* grad = nullptr;
  int64_t grad_row_stride = 0, grad_col_stride = 1;
  const int32_t* perm = nullptr;
  void* d = nullptr;
};
void run_w4a16_grad_cuda(const char* op, const W4Gradient& gradient, const TensorView& like);

void run_dequantize_cuda(const char* op, const cuda::w4a16::Dequantize& part,
                         const TensorView& like);
#endif

// Which CUDA kernel a problem gets on the current device, in words or as JSON.
std::string explain_w4a16_cuda(const char* op, int64_t m, const cpu::W4Weight& weight, DType dtype,
                               bool batch_invariant, ExplainForm form);

}  // namespace xgemm::ops
