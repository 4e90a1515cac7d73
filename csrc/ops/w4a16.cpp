// mul.w4a16, mul_into.w4a16 and the gradient in a: a W^T with a packed 4-bit W [n, k].
#include <optional>
#include <utility>
#include <vector>

#include "cpu/sgemm/api.h"
#include "cpu/w4a16/api.h"
#include "ops/boxed.h"
#include "ops/matmul_shape.h"
#include "ops/strided_copy.h"
#include "ops/w4_checks.h"
#include "ops/w4a16_cuda.h"

namespace xgemm::ops {
namespace {

using ActivationArg = EnumArg<Activation>;
using MaybeTensor = std::optional<Tensor>;

// A tensor [..., cols] as rows: all with one stride, or (row_stride empty) at leading dimensions
// that have none in common.
struct Rows {
  Rows(const char* op, const char* name, const TensorView& view) {
    const int64_t leading = view.dim - 1;
    int64_t inner = -1;  // the last leading dimension that counts
    bool even = true;
    const bool empty = view.numel() == 0;  // its strides may have any value
    for (int64_t d = leading - 1; d >= 0; --d) {
      if (__builtin_mul_overflow(count, view.sizes[d], &count)) {
        value_error(op, ": ", name, " must have fewer than 2^63 rows, got ", shape_of(view));
      }
      if (view.sizes[d] == 1 || empty) continue;
      even = even && (inner < 0 || view.strides[d] == reach);
      if (inner < 0) row_stride = view.strides[d];
      reach = view.strides[d] * view.sizes[d];
      inner = d;
    }
    if (!even) row_stride.reset();
    if (inner < 0) row_stride = 0;
  }

  int64_t count = 1;
  std::optional<int64_t> row_stride;

 private:
  int64_t reach = 0;
};

struct WeightArgs {
  int64_t n, k, group_size;
  bool bf16_scales, zeros;
};

// What the forward and the gradient have in common: x [..., channels], the weight, perm.
struct Checked {
  Checked(const char* op, const char* name, const OwnedTensor& x_tensor,
          const OwnedTensor& qweight_tensor, const WeightArgs& args, const MaybeTensor& perm_tensor,
          bool gradient)
      : x(op, name, x_tensor), rows(op, name, x), channels(gradient ? args.n : args.k) {
    const w4::Layout layout = require_layout(op, args.n, args.k, args.group_size, args.zeros);
    dtype = require_dtype(op, name, x, {DType::kF32, DType::kF16, DType::kBF16});
    if (x.dim == 0 || x.size(-1) != channels) {
      value_error(op, ": the last dimension of ", name, " must be ",
                  gradient ? "n=" : "k=", channels, ", got ", name, " ", shape_of(x));
    }
    const TensorView qweight(op, "qweight", qweight_tensor);
    const PackedBytes& bytes = packed.emplace(op, qweight, layout, args.bf16_scales);
    require_same_device(op, "qweight", qweight, name, x);
    on_cpu = x.device_type == aoti_torch_device_type_cpu();
    weight = {.data = bytes.data(), .layout = layout, .bf16_scales = args.bf16_scales};
    if (perm_tensor) {
      const TensorView view(op, "perm", *perm_tensor);
      require_perm(op, view, args.k, name, x);
      perm = static_cast<const int32_t*>(view.data());
      if (on_cpu) require_perm_values(op, perm, args.k);  // the CUDA kernels look at each value
    }
  }

  TensorView x;
  Rows rows;
  int64_t channels;
  DType dtype = DType::kF32;
  std::optional<PackedBytes> packed;
  cpu::W4Weight weight;
  const int32_t* perm = nullptr;
  bool on_cpu = true;
};

// x's rows, their channels in the order of `from`, as a dense matrix.
Tensor gather_rows(const Checked& checked, const int32_t* from, const Parallel& parallel) {
  const TensorView& x = checked.x;
  Tensor gathered = new_output({checked.rows.count, checked.channels}, x.dtype_code, x);
  copy_rows({.rows = checked.rows.count,
             .cols = checked.channels,
             .item_size = element_size(checked.dtype),
             .src = x.data(),
             .dst = gathered.mutable_data_ptr(),
             .tensor_is_source = true,
             .leading_dims = x.dim - 1,
             .leading_sizes = x.sizes,
             .leading_strides = x.strides,
             .tensor_col_stride = x.stride(-1),
             .matrix_row_stride = checked.channels,
             .from = from},
            parallel);
  return gathered;
}

// x as the A operand of the blocked driver; `copy` keeps what had to be copied.
GemmOperand matrix_of(const Checked& checked, const int32_t* from, const Parallel& parallel,
                      std::optional<Tensor>& copy) {
  GemmOperand matrix;
  if (from == nullptr && checked.rows.row_stride) {
    matrix.data = checked.x.data();
    matrix.row_stride = *checked.rows.row_stride;
    matrix.col_stride = checked.x.stride(-1);
  } else {
    copy = gather_rows(checked, from, parallel);
    matrix.data = copy->const_data_ptr();
    matrix.row_stride = checked.channels;
    matrix.col_stride = 1;
  }
  return matrix;
}

// The operands of one forward call, checked.
struct Operands : Checked {
  Operands(const char* op, const OwnedTensor& a, const OwnedTensor& qweight, const WeightArgs& args,
           const MaybeTensor& bias_tensor, const MaybeTensor& perm_tensor,
           const ActivationArg& activation_arg, bool batch_invariant)
      : Checked(op, "a", a, qweight, args, perm_tensor, false),
        activation(activation_arg.value(op)),
        batch_invariant(batch_invariant) {
    if (bias_tensor) {
      const TensorView& view = bias.emplace(op, "bias", *bias_tensor);
      require_same_dtype(op, "bias", view, "a", x);
      require_same_device(op, "bias", view, "a", x);
      require_shape(op, "bias", view, {args.n});
    }
  }

  int64_t n() const { return weight.layout.n; }
  bool empty() const { return rows.count == 0 || n() == 0; }

  void run(const char* op, const OwnedTensor& a, void* y, int64_t y_row_stride,
           int64_t y_col_stride) const {
#ifdef XGEMM_WITH_CUDA
    if (!on_cpu) return run_cuda(op, a, y, y_row_stride, y_col_stride);
#else
    (void)op, (void)a;  // only CPU tensors get here
#endif
    const TorchParallel parallel;
    cpu::W4Problem problem = {.m = rows.count,
                              .weight = weight,
                              .dtype = dtype,
                              .perm = perm,
                              .activation = activation,
                              .y = y,
                              .y_row_stride = y_row_stride,
                              .y_col_stride = y_col_stride,
                              .batch_invariant = batch_invariant};
    if (bias) {
      problem.bias = bias->data();
      problem.bias_stride = bias->strides[0];
    }
    const bool streams = weight.layout.k > 0 && cpu::w4a16_streams(problem);
    std::optional<Tensor> copy;
    const GemmOperand rows_of_a = matrix_of(*this, streams ? nullptr : perm, parallel, copy);
    if (streams) {
      problem.x = rows_of_a.data;
      problem.x_row_stride = rows_of_a.row_stride;
      problem.x_col_stride = rows_of_a.col_stride;
      cpu::w4a16_stream(problem, parallel);
    } else {
      run_blocked(problem, rows_of_a, parallel);
    }
  }

  std::optional<TensorView> bias;
  Activation activation;
  bool batch_invariant;

 private:
#ifdef XGEMM_WITH_CUDA
  void run_cuda(const char* op, const OwnedTensor& a, void* y, int64_t y_row_stride,
                int64_t y_col_stride) const {
    const CudaRows matrix(a, x, rows.row_stride);
    cuda::w4a16::Problem problem{.m = rows.count,
                                 .weight = cuda_weight(weight),
                                 .dtype = dtype,
                                 .x = matrix.data,
                                 .x_row_stride = matrix.row_stride,
                                 .x_col_stride = matrix.col_stride,
                                 .perm = perm,
                                 .activation = activation,
                                 .d = y,
                                 .d_row_stride = y_row_stride,
                                 .d_col_stride = y_col_stride,
                                 .batch_invariant = batch_invariant};
    if (bias) {
      problem.bias = bias->data();
      problem.bias_stride = bias->strides[0];
    }
    run_w4a16_cuda(op, problem, x);
  }
#endif

  void run_blocked(const cpu::W4Problem& w4, const GemmOperand& a, const Parallel& parallel) const {
    const cpu::W4Panels panels(weight);
    GemmProblem problem;
    problem.m = rows.count;
    problem.n = n();
    problem.k = channels;
    problem.dtype = dtype;
    problem.a = a;
    problem.d = w4.y;
    problem.d_row_stride = w4.y_row_stride;
    problem.d_col_stride = w4.y_col_stride;
    problem.bias = w4.bias;
    problem.bias_stride = w4.bias_stride;
    problem.activation = activation;
    cpu::gemm(problem, parallel, &panels);
  }
};

// The sizes of [..., cols] with x's leading dimensions.
Sizes sizes_with(const TensorView& x, int64_t cols) {
  Sizes sizes;
  for (int64_t d = 0; d < x.dim - 1; ++d) sizes.push_back(x.sizes[d]);
  sizes.push_back(cols);
  return sizes;
}

ReturnedTensor mul_w4a16(const OwnedTensor& a, const OwnedTensor& qweight, int64_t n, int64_t k,
                         int64_t group_size, const MaybeTensor& bias, const MaybeTensor& perm,
                         bool bf16_scales, bool zeros, const ActivationArg& activation,
                         bool batch_invariant) {
  const Operands operands("mul.w4a16", a, qweight, {n, k, group_size, bf16_scales, zeros}, bias,
                          perm, activation, batch_invariant);
  const Sizes sizes = sizes_with(operands.x, n);
  OwnedTensor result = new_owned(sizes.data(), sizes.dim(), operands.x.dtype_code, operands.x);
  if (!operands.empty()) operands.run("mul.w4a16", a, TensorView(result).mutable_data(), n, 1);
  return ReturnedTensor(std::move(result));
}

ReturnedTensor mul_w4a16_direct(const OwnedTensor& a, const OwnedTensor& qweight, int64_t n,
                                int64_t k, int64_t group_size, const MaybeTensor& bias,
                                bool bf16_scales, bool zeros) {
  return mul_w4a16(a, qweight, n, k, group_size, bias, std::nullopt, bf16_scales, zeros,
                   ActivationArg("none"), false);
}

void mul_into_w4a16(const OwnedTensor& dst, const OwnedTensor& a, const OwnedTensor& qweight,
                    int64_t n, int64_t k, int64_t group_size, const MaybeTensor& bias,
                    const MaybeTensor& perm, bool bf16_scales, bool zeros,
                    const ActivationArg& activation, bool batch_invariant) {
  constexpr const char* kOp = "mul_into.w4a16";
  const Operands operands(kOp, a, qweight, {n, k, group_size, bf16_scales, zeros}, bias, perm,
                          activation, batch_invariant);
  const TensorView view(kOp, "dst", dst);
  require_same_dtype(kOp, "dst", view, "a", operands.x);
  require_same_device(kOp, "dst", view, "a", operands.x);
  const Sizes sizes = sizes_with(operands.x, n);
  require_shape(kOp, "dst", view, sizes.data(), sizes.dim());
  require_no_self_overlap(kOp, "dst", view);
  require_no_overlap(kOp, "dst", view, "a", operands.x);
  require_no_overlap(kOp, "dst", view, "qweight", TensorView(qweight));
  if (operands.bias) require_no_overlap(kOp, "dst", view, "bias", *operands.bias);
  if (perm) require_no_overlap(kOp, "dst", view, "perm", TensorView(*perm));
  if (operands.empty()) return;

  const Rows rows(kOp, "dst", view);
  if (rows.row_stride) {
    operands.run(kOp, a, view.mutable_data(), *rows.row_stride, view.stride(-1));
    return;
  }
#ifdef XGEMM_WITH_CUDA
  if (!operands.on_cpu) {
    const Tensor whole = new_output(sizes.data(), sizes.dim(), view.dtype_code, view);
    operands.run(kOp, a, whole.mutable_data_ptr(), n, 1);
    return copy_to(dst, whole);
  }
#endif
  Tensor dense = new_output({rows.count, n}, view.dtype_code, view);
  operands.run(kOp, a, dense.mutable_data_ptr(), n, 1);
  copy_rows({.rows = rows.count,
             .cols = n,
             .item_size = element_size(operands.dtype),
             .src = dense.const_data_ptr(),
             .dst = view.mutable_data(),
             .tensor_is_source = false,
             .leading_dims = view.dim - 1,
             .leading_sizes = view.sizes,
             .leading_strides = view.strides,
             .tensor_col_stride = view.stride(-1),
             .matrix_row_stride = n},
            TorchParallel());
}

// A channel that perm names twice would need a sum, and one that it leaves out a zero.
void require_permutation(const char* op, const int32_t* perm, int64_t k) {
  std::vector<bool> seen(static_cast<size_t>(k));
  for (int64_t j = 0; j < k; ++j) {
    const auto channel = static_cast<size_t>(perm[j]);
    if (seen[channel]) {
      value_error(op, ": perm must hold each channel in [0, ", k, ") once, got ", channel,
                  " again at index ", j);
    }
    seen[channel] = true;
  }
}

// grad [..., n] -> grad W, [..., k], its channels put back where perm took them from.
ReturnedTensor w4a16_grad_a(const OwnedTensor& grad, const OwnedTensor& qweight, int64_t n,
                            int64_t k, int64_t group_size, const MaybeTensor& perm,
                            bool bf16_scales, bool zeros) {
  constexpr const char* kOp = "w4a16_grad_a";
  const Checked checked(kOp, "grad", grad, qweight, {n, k, group_size, bf16_scales, zeros}, perm,
                        true);
  if (checked.perm != nullptr && checked.on_cpu) require_permutation(kOp, checked.perm, k);
  const TensorView& view = checked.x;
  const Sizes sizes = sizes_with(view, k);
  OwnedTensor result = new_owned(sizes.data(), sizes.dim(), view.dtype_code, view);
  const int64_t rows = checked.rows.count;
  if (rows == 0 || k == 0) return ReturnedTensor(std::move(result));
#ifdef XGEMM_WITH_CUDA
  if (!checked.on_cpu) {
    const CudaRows matrix(grad, view, checked.rows.row_stride);
    run_w4a16_grad_cuda(kOp,
                        {.m = rows,
                         .weight = cuda_weight(checked.weight),
                         .dtype = checked.dtype,
                         .grad = matrix.data,
                         .grad_row_stride = matrix.row_stride,
                         .grad_col_stride = matrix.col_stride,
                         .perm = checked.perm,
                         .d = TensorView(result).mutable_data()},
                        view);
    return ReturnedTensor(std::move(result));
  }
#endif

  const TorchParallel parallel;
  const bool scatter = checked.perm != nullptr;
  void* const result_data = TensorView(result).mutable_data();
  std::optional<Tensor> product;  // with the channels in the weight's order, where that is another
  if (scatter) product = new_output({rows, k}, view.dtype_code, view);
  const cpu::W4PanelsTransposed panels(checked.weight);
  std::optional<Tensor> copy;
  GemmProblem problem;
  problem.m = rows;
  problem.n = k;
  problem.k = n;
  problem.dtype = checked.dtype;
  problem.a = matrix_of(checked, nullptr, parallel, copy);
  problem.d = scatter ? product->mutable_data_ptr() : result_data;
  problem.d_row_stride = k;
  cpu::gemm(problem, parallel, &panels);
  if (scatter) {
    copy_rows({.rows = rows,
               .cols = k,
               .item_size = element_size(checked.dtype),
               .src = product->const_data_ptr(),
               .dst = result_data,
               .tensor_is_source = false,
               .leading_dims = 1,
               .leading_sizes = &rows,
               .leading_strides = &k,
               .tensor_col_stride = 1,
               .matrix_row_stride = k,
               .to = checked.perm},
              parallel);
  }
  return ReturnedTensor(std::move(result));
}

ReturnedTensor w4a16_grad_a_direct(const OwnedTensor& grad, const OwnedTensor& qweight, int64_t n,
                                   int64_t k, int64_t group_size, bool bf16_scales, bool zeros) {
  return w4a16_grad_a(grad, qweight, n, k, group_size, std::nullopt, bf16_scales, zeros);
}

}  // namespace
}  // namespace xgemm::ops

STABLE_TORCH_LIBRARY_IMPL(xgemm, CPU, m) {
  m.impl("mul.w4a16", TORCH_BOX(&xgemm::ops::mul_w4a16));
  m.impl("mul_into.w4a16", TORCH_BOX(&xgemm::ops::mul_into_w4a16));
  m.impl("w4a16_grad_a", TORCH_BOX(&xgemm::ops::w4a16_grad_a));
  m.impl("_mul_w4a16", TORCH_BOX(&xgemm::ops::mul_w4a16_direct));
  m.impl("_w4a16_grad_a", TORCH_BOX(&xgemm::ops::w4a16_grad_a_direct));
}

#ifdef XGEMM_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(xgemm, CUDA, m) {
  m.impl("mul.w4a16", TORCH_BOX(&xgemm::ops::mul_w4a16));
  m.impl("mul_into.w4a16", TORCH_BOX(&xgemm::ops::mul_into_w4a16));
  m.impl("w4a16_grad_a", TORCH_BOX(&xgemm::ops::w4a16_grad_a));
  m.impl("_mul_w4a16", TORCH_BOX(&xgemm::ops::mul_w4a16_direct));
  m.impl("_w4a16_grad_a", TORCH_BOX(&xgemm::ops::w4a16_grad_a_direct));
}
#endif
