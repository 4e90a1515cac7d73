// sgemm and sgemm_into, on the CPU and on CUDA: alpha op(a) op(b) + beta c, as BLAS has it.
#include <optional>
#include <utility>
#include <vector>

#include "ops/boxed.h"
#include "ops/checks.h"
#include "ops/dense.h"
#include "ops/matmul_shape.h"

namespace xgemm::ops {
namespace {

using PrecisionArg = EnumArg<Precision>;

TensorView require_operand(const char* op, const char* name, const OwnedTensor& tensor) {
  const TensorView view(op, name, tensor);
  require_dtype(op, name, view, {DType::kF32});
  if (view.dim < 2) {
    value_error(op, ": ", name, " must have at least 2 dimensions, got ", shape_of(view));
  }
  return view;
}

// The operands of one call, checked, but for C.
struct Operands {
  Operands(const char* op, const OwnedTensor& a_tensor, const OwnedTensor& b_tensor, bool transa,
           bool transb, double alpha_arg, double beta_arg, const PrecisionArg& precision_arg)
      : a(require_operand(op, "a", a_tensor)),
        b(require_operand(op, "b", b_tensor)),
        alpha(static_cast<float>(alpha_arg)),
        beta(static_cast<float>(beta_arg)),
        precision(precision_arg.value(op)),
        shape(op, a, b, transa, transb) {
    require_same_device(op, "b", b, "a", a);
  }

  void require_c(const char* op, const TensorView& c) const {
    require_dtype(op, "c", c, {DType::kF32});
    require_same_device(op, "c", c, "a", a);
    shape.require_result(op, "c", c);
  }

  // c: read when beta is not 0, and null otherwise; may be d.
  void run(const char* op, const TensorView& d, const TensorView* c) const {
    if (shape.result().numel() == 0) return;
    GemmProblem problem;
    const std::vector<BatchDim> outer = shape.fill(problem, d, c);
    problem.precision = precision;
    problem.a.data = a.data();
    problem.b.data = b.data();
    problem.d = d.mutable_data();
    if (c != nullptr) problem.c.data = c->data();
    problem.alpha = alpha;
    problem.beta = beta;
    run_dense(op, problem, a, outer);
  }

  TensorView a, b;
  float alpha, beta;
  Precision precision;
  MatmulShape shape;
};

ReturnedTensor sgemm(const OwnedTensor& a, const OwnedTensor& b, const std::optional<Tensor>& c,
                     bool transa, bool transb, double alpha, double beta,
                     const PrecisionArg& precision) {
  constexpr const char* kOp = "sgemm";
  const Operands operands(kOp, a, b, transa, transb, alpha, beta, precision);
  std::optional<TensorView> c_view;
  if (c) operands.require_c(kOp, c_view.emplace(kOp, "c", *c));
  if (operands.beta != 0.0f && !c) {
    value_error(kOp, ": c must be given when beta is not 0, got None with beta=", beta);
  }
  const Sizes& sizes = operands.shape.result();
  OwnedTensor result = new_owned(sizes.data(), sizes.dim(), operands.a.dtype_code, operands.a);
  operands.run(kOp, TensorView(result), operands.beta != 0.0f ? &*c_view : nullptr);
  return ReturnedTensor(std::move(result));
}

void sgemm_into(const OwnedTensor& c, const OwnedTensor& a, const OwnedTensor& b, bool transa,
                bool transb, double alpha, double beta, const PrecisionArg& precision) {
  constexpr const char* kOp = "sgemm_into";
  const Operands operands(kOp, a, b, transa, transb, alpha, beta, precision);
  const TensorView view(kOp, "c", c);
  operands.require_c(kOp, view);
  require_no_self_overlap(kOp, "c", view);
  require_no_overlap(kOp, "c", view, "a", operands.a);
  require_no_overlap(kOp, "c", view, "b", operands.b);
  operands.run(kOp, view, operands.beta != 0.0f ? &view : nullptr);
}

}  // namespace
}  // namespace xgemm::ops

STABLE_TORCH_LIBRARY_IMPL(xgemm, CPU, m) {
  m.impl("sgemm", TORCH_BOX(&xgemm::ops::sgemm));
  m.impl("sgemm_into", TORCH_BOX(&xgemm::ops::sgemm_into));
}

#ifdef XGEMM_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(xgemm, CUDA, m) {
  m.impl("sgemm", TORCH_BOX(&xgemm::ops::sgemm));
  m.impl("sgemm_into", TORCH_BOX(&xgemm::ops::sgemm_into));
}
#endif
