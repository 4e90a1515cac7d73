// The choice of a reduction kernel on CUDA: pure, so it is shown without a GPU. Addresses are plain
// numbers here, as nothing looks behind them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "common/fast_divmod.h"
#include "cuda/reduce/select.h"
#include "device.h"

namespace bind_reduce {

namespace py = pybind11;
namespace reduce = xgemm::cuda::reduce;

namespace {

using Kept = std::tuple<int64_t, int64_t, int64_t>;  // size; strides of input and output
using Reduced = std::pair<int64_t, int64_t>;         // size, stride
using Dims = std::vector<std::pair<int64_t, int64_t>>;

struct Choice {
  xgemm::ReduceProblem problem;
  xgemm::DeviceInfo device;
  reduce::Plan plan;
  reduce::Config config;
};

Choice choose(int op, int dtype, uintptr_t in, const std::vector<Kept>& kept,
              const std::vector<Reduced>& reduced, double p, int capability, int sm_count,
              const Clocks& clocks) {
  xgemm::ReduceProblem problem;
  problem.op = static_cast<xgemm::ReduceOp>(op);
  problem.in_dtype = static_cast<xgemm::DType>(dtype);
  problem.in = reinterpret_cast<const void*>(in), problem.p = p;
  for (const auto& [size, of_in, of_out] : kept) problem.kept.push({size, of_in, of_out});
  for (const auto& [size, stride] : reduced) problem.reduced.push({size, stride, 0});
  const xgemm::DeviceInfo device = device_of(capability, sm_count, clocks);
  const reduce::Plan plan = reduce::make_plan(problem);
  return {problem, device, plan, reduce::select_config(problem, plan, device)};
}

Dims sizes_and_strides(const xgemm::ReduceDims& dims) {
  Dims list;
  for (int d = 0; d < dims.count; ++d) list.emplace_back(dims[d].size, dims[d].in_stride);
  return list;
}

}  // namespace

void define(py::module_& m) {
  py::enum_<reduce::Kernel>(m, "ReduceKernel")
      .value("SHORT_ROWS", reduce::Kernel::kShortRows)
      .value("RAGGED_ROWS", reduce::Kernel::kRaggedRows)
      .value("TEAM_ROWS", reduce::Kernel::kTeamRows)
      .value("LONE_ROWS", reduce::Kernel::kLoneRows)
      .value("ROW_PIECES", reduce::Kernel::kRowPieces)
      .value("ROWS", reduce::Kernel::kRows)
      .value("RUNS", reduce::Kernel::kRuns)
      .value("COLUMNS", reduce::Kernel::kColumns)
      .value("SHIFTED", reduce::Kernel::kShifted)
      .value("FLAT", reduce::Kernel::kFlat)
      .value("THIN", reduce::Kernel::kThin)
      .value("SHORT_COLUMNS", reduce::Kernel::kShortColumns)
      .value("WARP_COLUMNS", reduce::Kernel::kWarpColumns)
      .value("WRAPPED", reduce::Kernel::kWrapped)
      .value("STRIDED", reduce::Kernel::kStrided)
      .value("COPY", reduce::Kernel::kCopy);
  py::class_<Choice>(m, "ReduceChoice")
      .def_property_readonly("kernel", [](const Choice& c) { return c.config.kernel; })
      .def_property_readonly("threads", [](const Choice& c) { return c.config.threads; })
      .def_property_readonly("lanes", [](const Choice& c) { return c.config.lanes; })
      .def_property_readonly("vectors", [](const Choice& c) { return c.config.vectors; })
      .def_property_readonly("row_loads", [](const Choice& c) { return c.config.row_loads; })
      .def_property_readonly("tiles", [](const Choice& c) { return c.config.tiles; })
      .def_property_readonly("pieces", [](const Choice& c) { return c.config.pieces; })
      .def_property_readonly("cluster", [](const Choice& c) { return c.config.cluster; })
      .def_property_readonly("mail", [](const Choice& c) { return c.config.mail; })
      .def_property_readonly("collectors", [](const Choice& c) { return c.config.collectors; })
      .def_property_readonly("group", [](const Choice& c) { return c.config.group; })
      .def_property_readonly("streams", [](const Choice& c) { return c.config.streams; })
      .def_property_readonly("workspace_bytes",
                             [](const Choice& c) { return c.config.workspace_bytes; })
      .def_property_readonly("kept", [](const Choice& c) { return sizes_and_strides(c.plan.kept); })
      .def_property_readonly("reduced",
                             [](const Choice& c) { return sizes_and_strides(c.plan.reduced); })
      .def("__str__", [](const Choice& c) { return reduce::explain(c.plan, c.config); })
      .def("json",
           [](const Choice& c) { return reduce::explain_json(c.problem, c.plan, c.device, true); });
  m.def("select_reduce", &choose, py::kw_only(), py::arg("op"), py::arg("dtype"),
        py::arg("address"), py::arg("kept"), py::arg("reduced"), py::arg("p") = 2.0,
        py::arg("capability") = 90, py::arg("sm_count") = 132, py::arg("clocks") = Clocks{});
  m.def("fast_divide", [](uint32_t n, uint32_t d) { return xgemm::FastDivmod(d).divide(n); });
}

}  // namespace bind_reduce
