// Dense products, as functions over addresses.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/gemm/api.h"
#include "cuda/gemm/select.h"
#include "emulator/engine.h"

namespace py = pybind11;
namespace gemm = xgemm::cuda::gemm;
namespace emulator = xgemm::emulator;

namespace {

using Address = uintptr_t;
using Matrix = std::tuple<Address, int64_t, int64_t>;  // strides of rows and columns, in elements
using Batch = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;  // size; strides: a, b, c, d

xgemm::GemmOperand operand_of(const Matrix& matrix) {
  const auto [address, row_stride, col_stride] = matrix;
  return {reinterpret_cast<const void*>(address), row_stride, col_stride};
}

xgemm::GemmProblem make_problem(std::tuple<int64_t, int64_t, int64_t> mnk, int dtype,
                                const Matrix& a, const Matrix& b, const Matrix& c, const Matrix& d,
                                float alpha, float beta, Address bias, int64_t bias_stride,
                                int activation, const std::vector<Batch>& batch, int precision) {
  xgemm::GemmProblem problem;
  problem.precision = static_cast<xgemm::Precision>(precision);
  std::tie(problem.m, problem.n, problem.k) = mnk;
  problem.dtype = static_cast<xgemm::DType>(dtype);
  problem.a = operand_of(a), problem.b = operand_of(b), problem.c = operand_of(c);
  std::tie(std::ignore, problem.d_row_stride, problem.d_col_stride) = d;
  problem.d = reinterpret_cast<void*>(std::get<0>(d));
  problem.alpha = alpha, problem.beta = beta;
  problem.bias = reinterpret_cast<const void*>(bias), problem.bias_stride = bias_stride;
  problem.activation = static_cast<xgemm::Activation>(activation);
  if (batch.size() > xgemm::kMaxBatchDims) throw std::invalid_argument("too many batch dimensions");
  for (const auto& [size, of_a, of_b, of_c, of_d] : batch) {
    problem.batch[problem.batch_dims++] = {size, of_a, of_b, of_c, of_d};
  }
  return problem;
}

void launch(const xgemm::GemmProblem& problem, const gemm::Config& config) {
  const emulator::Workspace workspace(config.workspace_bytes);
  const xgemm::Status status = gemm::launch(problem, config, workspace.get(), nullptr);
  if (!status.ok()) {
    throw std::runtime_error(std::string(status.where) + ": " + cudaGetErrorString(status.error));
  }
}

}  // namespace

void bind_gemm(py::module_& m) {
  // Named apart from those of tests/cpp, which may be loaded beside this module.
  py::class_<xgemm::GemmProblem>(m, "Problem", py::module_local())
      .def(py::init(&make_problem), py::kw_only(), py::arg("mnk"), py::arg("dtype"), py::arg("a"),
           py::arg("b"), py::arg("c"), py::arg("d"), py::arg("alpha") = 1.0f,
           py::arg("beta") = 0.0f, py::arg("bias") = 0, py::arg("bias_stride") = 1,
           py::arg("activation") = 0, py::arg("batch") = std::vector<Batch>{},
           py::arg("precision") = 0);
  py::class_<gemm::Config>(m, "Config", py::module_local())
      .def(py::init([](int kernel, int block_m, int block_n, int stages, int cluster, int splits,
                       int ctas, bool tma_store, bool copy_a, bool copy_b, int64_t workspace_bytes,
                       bool stream_k, bool shifted, bool swapped) {
             return gemm::Config{.kernel = static_cast<gemm::Kernel>(kernel),
                                 .block_m = block_m,
                                 .block_n = block_n,
                                 .stages = stages,
                                 .cluster = cluster,
                                 .splits = splits,
                                 .stream_k = stream_k,
                                 .shifted = shifted,
                                 .swapped = swapped,
                                 .ctas = ctas,
                                 .tma_store = tma_store,
                                 .copy_a = copy_a,
                                 .copy_b = copy_b,
                                 .workspace_bytes = workspace_bytes,
                                 .reason = "a test wants it"};
           }),
           py::kw_only(), py::arg("kernel"), py::arg("block_m"), py::arg("block_n"),
           py::arg("stages"), py::arg("cluster") = 1, py::arg("splits") = 1, py::arg("ctas"),
           py::arg("tma_store") = false, py::arg("copy_a") = false, py::arg("copy_b") = false,
           py::arg("workspace_bytes") = 0, py::arg("stream_k") = false, py::arg("shifted") = false,
           py::arg("swapped") = false);
  m.def("select", [](const xgemm::GemmProblem& problem, int capability, int sm_count) {
    return gemm::select_config(problem, {.sm_count = sm_count, .capability = capability});
  });
  m.def("explain", &gemm::explain);
  m.def("launch", &launch);
}
