// explain: which kernel and blocking a problem gets, in words or as JSON.
#include <limits>
#include <string>

#include "cpu/sgemm/api.h"
#include "cpu/w4a16/api.h"
#include "ops/boxed.h"
#include "ops/dense.h"
#include "ops/torch_parallel.h"
#include "ops/w4_checks.h"
#include "ops/w4a16_cuda.h"

namespace xgemm::ops {
namespace {

constexpr const char* kOp = "explain";

DType parse_dtype(const std::string& op, const std::string& text) {
  const bool fp32_only = op == "sgemm";
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (text == name_of(dtype) && (dtype == DType::kF32 || !fp32_only)) return dtype;
  }
  value_error(kOp, ": dtype of ", op, " must be ",
              fp32_only ? "'float32'" : "'float32', 'float16' or 'bfloat16'", ", got ",
              printable(text));
}

void require_extent(const char* name, int64_t value) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (value < 0 || value > kMax) {
    value_error(kOp, ": ", name, " must be in [0, ", kMax, "], got ", value);
  }
}

// Dense operands, as row-major as transa and transb leave them.
GemmProblem dense_problem(int64_t m, int64_t n, int64_t k, DType dtype, Precision precision,
                          bool transa, bool transb) {
  GemmProblem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.dtype = dtype;
  problem.precision = precision;
  problem.a = {.row_stride = transa ? 1 : k, .col_stride = transa ? m : 1};
  problem.b = {.row_stride = transb ? 1 : n, .col_stride = transb ? k : 1};
  problem.d_row_stride = n;
  return problem;
}

std::string explain(const StringArg& op, int64_t m, int64_t n, int64_t k, const StringArg& dtype,
                    int64_t group_size, bool zeros, bool bf16_scales, bool transa, bool transb,
                    bool batch_invariant, const StringArg& device,
                    const EnumArg<Precision>& precision, bool json, bool candidates) {
  const ExplainForm form{.json = json, .candidates = candidates};
  const std::string& name = op.text;
  const bool quantized = name == "mul.w4a16";
  if (!quantized && name != "mul" && name != "sgemm") {
    value_error(kOp, ": op must be 'mul', 'mul.w4a16' or 'sgemm', got ", printable(name));
  }
  const bool on_cuda = device.text == "cuda";
  if (device.text != "cpu" && !on_cuda) {
    value_error(kOp, ": device of ", name, " must be 'cpu' or 'cuda', got ",
                printable(device.text));
  }
  require_extent("m", m);
  require_extent("n", n);
  require_extent("k", k);
  const DType element = parse_dtype(name, dtype.text);
  const int threads = TorchParallel().num_threads();
  const GemmProblem dense = dense_problem(m, n, k, element, precision.value(kOp), transa, transb);
  if (!quantized && on_cuda) return explain_dense_cuda(kOp, dense, form);
  if (!quantized) {
    return json ? cpu::explain_gemm_json(dense, threads) : cpu::explain_gemm(dense, threads);
  }

  const w4::Layout layout = require_layout(kOp, n, k, group_size, zeros);
  const cpu::W4Weight weight = {.data = nullptr, .layout = layout, .bf16_scales = bf16_scales};
  if (on_cuda) return explain_w4a16_cuda(kOp, m, weight, element, batch_invariant, form);
  const cpu::W4Problem problem = {.m = m,
                                  .weight = weight,
                                  .dtype = element,
                                  .x_row_stride = k,
                                  .y_row_stride = n,
                                  .batch_invariant = batch_invariant};
  if (json) return cpu::explain_w4a16_json(problem, threads);
  std::string text = cpu::explain_w4a16(problem, threads);
  if (!cpu::w4a16_streams(problem)) {
    const cpu::W4Panels panels(problem.weight);
    text += cpu::explain_gemm(dense, threads, &panels);
  }
  return text;
}

}  // namespace
}  // namespace xgemm::ops

STABLE_TORCH_LIBRARY_IMPL(xgemm, CompositeExplicitAutograd, m) {
  m.impl("explain", TORCH_BOX(&xgemm::ops::explain));
}
