// The choice of a dense kernel on CUDA: pure, so it is shown without a GPU. Addresses are plain
// numbers here, as nothing looks behind them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/fast_divisor.h"
#include "cuda/gemm/align/plan.h"
#include "cuda/gemm/select.h"
#include "cuda/gemm/sm90/persistent/tiles.h"
#include "device.h"

namespace bind_gemm {

namespace py = pybind11;
namespace gemm = xgemm::cuda::gemm;

namespace {

using Address = uintptr_t;
using Strides = std::pair<int64_t, int64_t>;                   // of rows, of columns
using Batch = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // size, strides of a, b and d

xgemm::DType dtype_of(const std::string& name) {
  for (const auto dtype : {xgemm::DType::kF16, xgemm::DType::kBF16, xgemm::DType::kF32}) {
    if (name == xgemm::name_of(dtype)) return dtype;
  }
  throw std::invalid_argument("no such dtype: " + name);
}

xgemm::Precision precision_of(const std::string& name) {
  if (name == "ieee") return xgemm::Precision::kIeee;
  if (name == "tf32x3") return xgemm::Precision::kTf32x3;
  if (name == "tf32") return xgemm::Precision::kTf32;
  throw std::invalid_argument("no such precision: " + name);
}

xgemm::GemmProblem make_problem(int64_t m, int64_t n, int64_t k, const std::string& dtype,
                                Address a, Strides a_strides, Address b, Strides b_strides,
                                Address d, Strides d_strides, float alpha, float beta,
                                const std::vector<Batch>& batch, const std::string& precision) {
  if (batch.size() > xgemm::kMaxBatchDims) throw std::invalid_argument("too many batch dimensions");
  xgemm::GemmProblem problem;
  problem.m = m, problem.n = n, problem.k = k;
  problem.dtype = dtype_of(dtype);
  problem.precision = precision_of(precision);
  problem.a = {reinterpret_cast<const void*>(a), a_strides.first, a_strides.second};
  problem.b = {reinterpret_cast<const void*>(b), b_strides.first, b_strides.second};
  problem.d = reinterpret_cast<void*>(d);
  problem.d_row_stride = d_strides.first, problem.d_col_stride = d_strides.second;
  problem.c = {problem.d, problem.d_row_stride, problem.d_col_stride};
  problem.alpha = alpha, problem.beta = beta;
  for (const auto& [size, of_a, of_b, of_d] : batch) {
    problem.batch[problem.batch_dims++] = {size, of_a, of_b, of_d, of_d};
  }
  return problem;
}

using gemm::align::AlignedCopy;

// The problem as it reads copies of the operands that `sides` names, in a workspace; and the
// copies.
std::pair<xgemm::GemmProblem, std::vector<AlignedCopy>> read_copies(xgemm::GemmProblem problem,
                                                                    const std::string& sides,
                                                                    Address workspace) {
  gemm::align::Copies plan;
  if (sides.find('a') != std::string::npos) plan.a = gemm::align::order_of_a(problem);
  if (sides.find('b') != std::string::npos) plan.b = gemm::align::order_of_b(problem);
  const gemm::align::CopyList list =
      gemm::align::read_copies(&problem, plan, reinterpret_cast<void*>(workspace));
  return {problem, {list.copies, list.copies + list.count}};
}

void bind_align(py::module_& m) {
  py::class_<AlignedCopy>(m, "AlignedCopy")
      .def_readonly("outer", &AlignedCopy::outer)
      .def_readonly("inner", &AlignedCopy::inner)
      .def_readonly("outer_stride", &AlignedCopy::outer_stride)
      .def_readonly("inner_stride", &AlignedCopy::inner_stride)
      .def_readonly("leading_dimension", &AlignedCopy::leading_dimension)
      .def_property_readonly("matrices", &AlignedCopy::matrices)
      .def_property_readonly("bytes",
                             [](const AlignedCopy& copy) { return copy.bytes(xgemm::DType::kF16); })
      .def_property_readonly(
          "dst", [](const AlignedCopy& copy) { return reinterpret_cast<Address>(copy.dst); })
      .def_property_readonly("batch", [](const AlignedCopy& copy) {
        std::vector<std::pair<int64_t, int64_t>> dims;
        for (int i = 0; i < copy.batch_dims; ++i) {
          dims.emplace_back(copy.batch_size[i], copy.batch_stride[i]);
        }
        return dims;
      });
  m.def("read_copies", &read_copies, py::arg("problem"), py::arg("sides"), py::arg("workspace"));
}

std::tuple<Address, int64_t, int64_t> matrix_of(const void* data, int64_t row_stride,
                                                int64_t column_stride) {
  return {reinterpret_cast<Address>(data), row_stride, column_stride};
}

std::vector<Batch> batch_of(const xgemm::GemmProblem& problem) {
  std::vector<Batch> dims;
  for (int i = 0; i < problem.batch_dims; ++i) {
    const xgemm::BatchDim& dim = problem.batch[i];
    dims.emplace_back(dim.size, dim.a, dim.b, dim.d);
  }
  return dims;
}

// A choice, and the fields that every kernel shows.
struct Chosen {
  gemm::Choice choice;
  gemm::Fields fields;
};

Chosen chosen(const xgemm::GemmProblem& problem, const gemm::Choice& choice) {
  return {choice, gemm::fields_of(problem, choice)};
}

void bind_choice(py::module_& m) {
  using gemm::Fields;
  const auto of = [](auto Fields::* member) {
    return [member](const Chosen& chosen) { return chosen.fields.*member; };
  };
  py::class_<Chosen>(m, "GemmChoice")
      .def_property_readonly("kernel", of(&Fields::kernel))
      .def_property_readonly("block_m", of(&Fields::block_m))
      .def_property_readonly("block_n", of(&Fields::block_n))
      .def_property_readonly("stages", of(&Fields::stages))
      .def_property_readonly("cluster", of(&Fields::cluster))
      .def_property_readonly("splits", of(&Fields::splits))
      .def_property_readonly("shifted", of(&Fields::shifted))
      .def_property_readonly("swapped", of(&Fields::swapped))
      .def_property_readonly("ctas", of(&Fields::ctas))
      .def_property_readonly("tma_store", of(&Fields::tma_store))
      .def_property_readonly("copy_a", of(&Fields::copy_a))
      .def_property_readonly("copy_b", of(&Fields::copy_b))
      .def_property_readonly("workspace_bytes", of(&Fields::workspace_bytes))
      .def_property_readonly("reason", [](const Chosen& c) { return c.choice.reason; });
}

}  // namespace

void define(py::module_& m) {
  py::class_<xgemm::GemmProblem>(m, "GemmProblem")
      .def(py::init(&make_problem), py::kw_only(), py::arg("m"), py::arg("n"), py::arg("k"),
           py::arg("dtype"), py::arg("a"), py::arg("a_strides"), py::arg("b"), py::arg("b_strides"),
           py::arg("d"), py::arg("d_strides"), py::arg("alpha") = 1.0f, py::arg("beta") = 0.0f,
           py::arg("batch") = std::vector<Batch>{}, py::arg("precision") = "ieee")
      .def_property_readonly("a",
                             [](const xgemm::GemmProblem& p) {
                               return matrix_of(p.a.data, p.a.row_stride, p.a.col_stride);
                             })
      .def_property_readonly("b",
                             [](const xgemm::GemmProblem& p) {
                               return matrix_of(p.b.data, p.b.row_stride, p.b.col_stride);
                             })
      .def_property_readonly("d",
                             [](const xgemm::GemmProblem& p) {
                               return matrix_of(p.d, p.d_row_stride, p.d_col_stride);
                             })
      .def_property_readonly("batch", &batch_of);
  bind_choice(m);
#define XGEMM_TILE(block_n, stages) std::pair(block_n, stages),
  m.attr("SM90_PERSISTENT_TILES") =
      std::vector<std::pair<int, int>>{XGEMM_SM90_TILES(XGEMM_TILE)};  // columns, stages
#undef XGEMM_TILE
  m.attr("MAX_BATCH_DIMS") = xgemm::kMaxBatchDims;
  m.def(
      "select_gemm",
      [](const xgemm::GemmProblem& problem, int capability, int sm_count, const Clocks& clocks) {
        const auto device = device_of(capability, sm_count, clocks);
        return chosen(problem, gemm::select_config(problem, device));
      },
      py::arg("problem"), py::arg("capability"), py::arg("sm_count"), py::arg("clocks") = Clocks{});
  m.def(
      "remembered_gemm",
      [](const xgemm::GemmProblem& problem, int capability, int sm_count) {
        return chosen(problem, gemm::remembered_config(problem, device_of(capability, sm_count)));
      },
      py::arg("problem"), py::arg("capability"), py::arg("sm_count"));
  m.def("fast_divide", [](uint32_t x, uint32_t by) { return xgemm::FastDivisor(by).divide(x); });
  bind_align(m);
  m.def(
      "explain_gemm",
      [](const xgemm::GemmProblem& problem, const Chosen& chosen) {
        return gemm::explain(problem, chosen.choice);
      },
      py::arg("problem"), py::arg("choice"));
  m.def(
      "explain_gemm_json",
      [](const xgemm::GemmProblem& problem, int capability, int sm_count, bool candidates,
         const Clocks& clocks) {
        return gemm::explain_json(problem, device_of(capability, sm_count, clocks), candidates);
      },
      py::arg("problem"), py::arg("capability"), py::arg("sm_count"), py::arg("candidates") = true,
      py::arg("clocks") = Clocks{});
}

}  // namespace bind_gemm
