// mul and mul_into, on the CPU and on CUDA: activation(a b + bias), shapes as torch.matmul takes
// them.
#include <optional>
#include <utility>
#include <vector>

#include "ops/boxed.h"
#include "ops/checks.h"
#include "ops/dense.h"
#include "ops/matmul_shape.h"

namespace xgemm::ops {
namespace {

using ActivationArg = EnumArg<Activation>;
using PrecisionArg = EnumArg<Precision>;
using MaybeTensor = std::optional<Tensor>;

// The operands of one call, checked.
struct Operands {
  Operands(const char* op, const OwnedTensor& a_tensor, const OwnedTensor& b_tensor,
           const MaybeTensor& bias_tensor, const ActivationArg& activation_arg,
           const PrecisionArg& precision_arg)
      : a(op, "a", a_tensor),
        b(op, "b", b_tensor),
        dtype(check_dtypes(op, precision_arg)),
        precision(precision_arg.value(op)),
        activation(activation_arg.value(op)),
        shape(op, a, b) {
    if (bias_tensor) check_bias(op, bias.emplace(op, "bias", *bias_tensor));
  }

  void run(const char* op, const TensorView& d) const {
    if (shape.result().numel() == 0) return;
    GemmProblem problem;
    const std::vector<BatchDim> outer = shape.fill(problem, d);
    problem.dtype = dtype;
    problem.precision = precision;
    problem.a.data = a.data();
    problem.b.data = b.data();
    problem.d = d.mutable_data();
    problem.activation = activation;
    if (bias) {
      problem.bias = bias->data();
      problem.bias_stride = bias->strides[0];
    }
    run_dense(op, problem, a, outer);
  }

  TensorView a, b;
  std::optional<TensorView> bias;
  DType dtype;
  Precision precision;
  Activation activation;
  MatmulShape shape;

 private:
  DType check_dtypes(const char* op, const PrecisionArg& precision_arg) const {
    const DType found = require_dtype(op, "a", a, {DType::kF32, DType::kF16, DType::kBF16});
    require_same_dtype(op, "b", b, "a", a);
    require_same_device(op, "b", b, "a", a);
    if (precision_arg.value(op) != Precision::kIeee && found != DType::kF32) {
      value_error(op, ": precision must be 'ieee' for ", name_of(found),
                  " operands, as it chooses how float32 ones are multiplied");
    }
    return found;
  }

  void check_bias(const char* op, const TensorView& view) const {
    require_same_dtype(op, "bias", view, "a", a);
    require_same_device(op, "bias", view, "a", a);
    require_shape(op, "bias", view, {shape.n()});
  }
};

ReturnedTensor mul(const OwnedTensor& a, const OwnedTensor& b, const MaybeTensor& bias,
                   const ActivationArg& activation, const PrecisionArg& precision) {
  const Operands operands("mul", a, b, bias, activation, precision);
  const Sizes& sizes = operands.shape.result();
  OwnedTensor result = new_owned(sizes.data(), sizes.dim(), operands.a.dtype_code, operands.a);
  operands.run("mul", TensorView(result));
  return ReturnedTensor(std::move(result));
}

ReturnedTensor mul_direct(const OwnedTensor& a, const OwnedTensor& b, const MaybeTensor& bias) {
  return mul(a, b, bias, ActivationArg("none"), PrecisionArg("ieee"));
}

void mul_into(const OwnedTensor& dst, const OwnedTensor& a, const OwnedTensor& b,
              const MaybeTensor& bias, const ActivationArg& activation,
              const PrecisionArg& precision) {
  constexpr const char* kOp = "mul_into";
  const Operands operands(kOp, a, b, bias, activation, precision);
  const TensorView view(kOp, "dst", dst);
  require_same_dtype(kOp, "dst", view, "a", operands.a);
  require_same_device(kOp, "dst", view, "a", operands.a);
  operands.shape.require_result(kOp, "dst", view);
  require_no_self_overlap(kOp, "dst", view);
  require_no_overlap(kOp, "dst", view, "a", operands.a);
  require_no_overlap(kOp, "dst", view, "b", operands.b);
  if (operands.bias) require_no_overlap(kOp, "dst", view, "bias", *operands.bias);
  operands.run(kOp, view);
}

}  // namespace
}  // namespace xgemm::ops

STABLE_TORCH_LIBRARY_IMPL(xgemm, CPU, m) {
  m.impl("mul", TORCH_BOX(&xgemm::ops::mul));
  m.impl("_mul", TORCH_BOX(&xgemm::ops::mul_direct));
  m.impl("mul_into", TORCH_BOX(&xgemm::ops::mul_into));
}

#ifdef XGEMM_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(xgemm, CUDA, m) {
  m.impl("mul", TORCH_BOX(&xgemm::ops::mul));
  m.impl("_mul", TORCH_BOX(&xgemm::ops::mul_direct));
  m.impl("mul_into", TORCH_BOX(&xgemm::ops::mul_into));
}
#endif
