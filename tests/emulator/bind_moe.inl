// Mixtures of experts over packed 4-bit weights, as functions over addresses.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "cuda/w4a16/grouped/api.h"
#include "emulator/engine.h"

namespace bind_moe {

namespace py = pybind11;
namespace grouped = xgemm::cuda::w4a16::grouped;
namespace emulator = xgemm::emulator;

namespace {

using Address = uintptr_t;

void require_ok(const xgemm::Status& status) {
  if (status.ok()) return;
  throw std::runtime_error(std::string(status.where) + ": " + cudaGetErrorString(status.error));
}

grouped::Problem make_problem(int64_t experts, int64_t slots,
                              std::tuple<int64_t, int64_t, int64_t> layout, bool zeros,
                              bool bf16_scales, int dtype, Address weight,
                              std::tuple<Address, int64_t> x, int64_t row_divisor, Address sorted,
                              Address bias, Address perm, int activation, Address y, bool fp4) {
  const auto [n, k, group_size] = layout;
  grouped::Problem problem;
  problem.experts = experts, problem.slots = slots;
  problem.weight = {
      reinterpret_cast<const uint8_t*>(weight), {n, k, group_size, zeros}, bf16_scales};
  problem.fp4 = fp4;
  problem.dtype = static_cast<xgemm::DType>(dtype);
  problem.x = reinterpret_cast<const void*>(std::get<0>(x)), problem.x_row_stride = std::get<1>(x);
  problem.row_divisor = row_divisor;
  problem.sorted = reinterpret_cast<const int32_t*>(sorted);
  problem.bias = reinterpret_cast<const void*>(bias);
  problem.perm = reinterpret_cast<const int32_t*>(perm);
  problem.activation = static_cast<xgemm::GatedActivation>(activation);
  problem.y = reinterpret_cast<void*>(y);
  return problem;
}

// block_m, stages: others than the plan's, where they are not 0.
xgemm::DeviceInfo device_of(int capability) { return {.sm_count = 4, .capability = capability}; }

void launch(grouped::Problem problem, int capability, int block_m, int stages, bool wgmma) {
  problem.wanted = {wgmma ? grouped::Kernel::kWgmma : grouped::Kernel::kMmaSync, block_m};
  grouped::Plan plan = grouped::make_plan(problem, device_of(capability));
  if (plan.wgmma != wgmma) throw std::runtime_error("wgmma does not take the problem");
  if (block_m != 0) {
    plan.block_m = block_m;
    plan.tiles = problem.slots + problem.experts;  // more than there are
  }
  if (stages != 0) plan.stages = stages;
  const emulator::Workspace workspace(plan.workspace_bytes);
  require_ok(grouped::launch(problem, plan, workspace.get(), nullptr));
}

}  // namespace

void define(py::module_& m) {
  py::class_<grouped::Problem>(m, "MoeProblem", py::module_local())
      .def(py::init(&make_problem), py::kw_only(), py::arg("experts"), py::arg("slots"),
           py::arg("layout"), py::arg("zeros"), py::arg("bf16_scales"), py::arg("dtype"),
           py::arg("weight"), py::arg("x"), py::arg("row_divisor"), py::arg("sorted"),
           py::arg("bias"), py::arg("perm"), py::arg("activation"), py::arg("y"), py::arg("fp4"));
  m.def("launch_moe", &launch);
  m.def("combine_moe", [](int64_t tokens, int64_t top_k, int64_t columns, int dtype, Address y,
                          Address weights, int weights_dtype, Address result, int capability) {
    const grouped::Combine combine{.tokens = tokens,
                                   .top_k = top_k,
                                   .columns = columns,
                                   .dtype = static_cast<xgemm::DType>(dtype),
                                   .y = reinterpret_cast<const void*>(y),
                                   .weights = reinterpret_cast<const void*>(weights),
                                   .weights_dtype = static_cast<xgemm::DType>(weights_dtype),
                                   .result = reinterpret_cast<void*>(result)};
    require_ok(grouped::launch(combine, device_of(capability), nullptr));
  });
  m.def("sort_moe",
        [](Address ids, bool wide, int64_t slots, int experts, Address sorted, int capability) {
          const grouped::Sort sort{.ids = reinterpret_cast<const void*>(ids),
                                   .wide = wide,
                                   .slots = slots,
                                   .experts = experts,
                                   .sorted = reinterpret_cast<int32_t*>(sorted)};
          require_ok(grouped::launch(sort, device_of(capability), nullptr));
        });
}

}  // namespace bind_moe
