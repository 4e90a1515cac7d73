// The choice of a W4A16 kernel on CUDA, and how the one for few rows shares out K: pure, so it is
// shown without a GPU. Addresses are plain numbers here, as nothing looks behind them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "cuda/w4a16/select.h"
#include "cuda/w4a16/sm90/rows/select.h"
#include "cuda/w4a16/sm90/rows/split.h"
#include "cuda/w4a16/sm90/wgmma/select.h"
#include "cuda/w4a16/sm90/wgmma/tile.h"
#include "cuda/w4a16/sm90/whole/select.h"

namespace py = pybind11;
namespace w4a16 = xgemm::cuda::w4a16;
namespace rows = xgemm::cuda::w4a16::sm90::rows;
namespace wgmma = xgemm::cuda::w4a16::sm90::wgmma;
namespace whole = xgemm::cuda::w4a16::sm90::whole;

namespace {

w4a16::Problem make_problem(int64_t m, int64_t n, int64_t k, int64_t group_size, bool zeros,
                            bool bf16_scales, const std::string& dtype, bool batch_invariant,
                            bool perm) {
  w4a16::Problem problem;
  problem.m = m;
  problem.weight.layout = {n, k, group_size, zeros};
  problem.weight.bf16_scales = bf16_scales;
  for (const auto type : {xgemm::DType::kF16, xgemm::DType::kBF16, xgemm::DType::kF32}) {
    if (dtype == xgemm::name_of(type)) problem.dtype = type;
  }
  problem.x_row_stride = k;
  problem.d_row_stride = n;
  problem.batch_invariant = batch_invariant;
  static const int32_t some_perm[1] = {};
  if (perm) problem.perm = some_perm;
  return problem;
}

py::dict constants() {
  py::dict all;
  all["MOST_ROWS"] = rows::kMostRows;
  all["MOST_STAGES"] = rows::kMostStages;
  all["MOST_BUFFERS"] = rows::kMostBuffers;
  all["SMEM_BYTES"] = rows::kSmemBytes;
  all["X_PADDING"] = rows::kXPadding;
  all["BARRIER_BYTES"] = sizeof(rows::Barriers);
  all["INBOX_BYTES"] = rows::kInboxBytes;
  return all;
}

}  // namespace

void bind_w4a16(py::module_& m) {
  py::class_<w4a16::Problem>(m, "W4A16Problem")
      .def(py::init(&make_problem), py::kw_only(), py::arg("m"), py::arg("n"), py::arg("k"),
           py::arg("group_size") = 128, py::arg("zeros") = false, py::arg("bf16_scales") = false,
           py::arg("dtype") = "float16", py::arg("batch_invariant") = false,
           py::arg("perm") = false);
  py::enum_<w4a16::Kernel>(m, "W4A16Kernel")
      .value("SM80", w4a16::Kernel::kSm80)
      .value("SM90_ROWS", w4a16::Kernel::kSm90Rows)
      .value("SM90_WHOLE", w4a16::Kernel::kSm90Whole)
      .value("SM90_WGMMA", w4a16::Kernel::kSm90Wgmma);
  py::class_<w4a16::Config>(m, "W4A16Config")
      .def_readonly("kernel", &w4a16::Config::kernel)
      .def_readonly("block_m", &w4a16::Config::block_m)
      .def_readonly("block_n", &w4a16::Config::block_n)
      .def_readonly("warps", &w4a16::Config::warps)
      .def_readonly("stages", &w4a16::Config::stages)
      .def_readonly("cluster", &w4a16::Config::cluster)
      .def_readonly("ctas", &w4a16::Config::ctas)
      .def_readonly("splits", &w4a16::Config::splits)
      .def_readonly("even_shares", &w4a16::Config::even_shares)
      .def_readonly("copy_x", &w4a16::Config::copy_x)
      .def_readonly("workspace_bytes", &w4a16::Config::workspace_bytes)
      .def_readonly("reason", &w4a16::Config::reason);
  m.def(
      "select_w4a16",
      [](const w4a16::Problem& problem, int capability, int sm_count) {
        return w4a16::select_config(problem, {.sm_count = sm_count, .capability = capability});
      },
      py::arg("problem"), py::arg("capability"), py::arg("sm_count"));
  m.def(
      "remembered_w4a16",
      [](const w4a16::Problem& problem, int capability, int sm_count) {
        return w4a16::remembered_config(problem, {.sm_count = sm_count, .capability = capability});
      },
      py::arg("problem"), py::arg("capability"), py::arg("sm_count"));
  // One kernel's own choice, whatever select_config prefers.
  const auto define_choice = [&m](const char* name, auto select) {
    m.def(
        name,
        [select](const w4a16::Problem& problem, int capability, int sm_count) {
          w4a16::Config config;
          double us = 0;
          const xgemm::DeviceInfo device{.sm_count = sm_count, .capability = capability};
          return select(problem, device, &config, &us) ? std::optional(config) : std::nullopt;
        },
        py::arg("problem"), py::arg("capability"), py::arg("sm_count"));
  };
  define_choice("select_w4_rows", &rows::select);
  define_choice("select_w4_wgmma", &wgmma::select);
  define_choice("select_w4_whole",
                [](const w4a16::Problem& p, const xgemm::DeviceInfo& device, w4a16::Config* config,
                   double*) { return whole::select(p, device, config); });
  m.def("w4_wgmma_may_split", &wgmma::may_split, py::arg("consumers"), py::arg("rows"));
  m.def("explain_w4a16", &w4a16::explain, py::arg("problem"), py::arg("config"));

  py::class_<rows::SharedPlan>(m, "W4RowsSharedPlan")
      .def_readonly("inbox", &rows::SharedPlan::inbox)
      .def_readonly("x", &rows::SharedPlan::x)
      .def_readonly("x_sums", &rows::SharedPlan::x_sums)
      .def_readonly("sums", &rows::SharedPlan::sums)
      .def_readonly("ring", &rows::SharedPlan::ring)
      .def_readonly("bytes", &rows::SharedPlan::bytes);
  py::class_<rows::Split>(m, "W4RowsSplit")
      .def_readonly("rows", &rows::Split::rows)
      .def_readonly("warps", &rows::Split::warps)
      .def_readonly("stages", &rows::Split::stages)
      .def_readonly("cluster", &rows::Split::cluster)
      .def_readonly("strips", &rows::Split::strips)
      .def_readonly("units", &rows::Split::units)
      .def_readonly("piece_bytes", &rows::Split::piece_bytes)
      .def_property_readonly("most_units", &rows::Split::most_units)
      .def_property_readonly("least_units", &rows::Split::least_units)
      .def_property_readonly("x_pitch", &rows::Split::x_pitch)
      .def_property_readonly("buffers", &rows::Split::buffers)
      .def("plan", &rows::Split::plan);
  m.def(
      "w4_rows_share_tiles",
      [](int strips, int clusters, int tile_strips) {
        const rows::Turns turns = rows::share_tiles(strips, clusters, tile_strips);
        return std::make_tuple(turns.each, turns.extra, turns.extra_strips);
      },
      py::arg("strips"), py::arg("clusters"), py::arg("tile_strips"));
  m.def("w4_rows_sum_pitch", &rows::sum_pitch, py::arg("strips"));
  m.def("w4_rows_split", &rows::split_of, py::arg("problem"), py::arg("config"));
  m.def("w4_rows_most_warps", &rows::most_warps, py::arg("mma_tiles"), py::arg("fine"));
  m.attr("W4_ROWS") = constants();
}
