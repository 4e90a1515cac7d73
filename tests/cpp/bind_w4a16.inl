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
#include "cuda/w4a16/sm90/register_resident/select.h"
#include "cuda/w4a16/sm90/skinny/select.h"
#include "cuda/w4a16/sm90/skinny/split.h"
#include "cuda/w4a16/sm90/wgmma/select.h"
#include "cuda/w4a16/sm90/wgmma/tile.h"
#include "device.h"

namespace bind_w4a16 {

namespace py = pybind11;
namespace w4a16 = xgemm::cuda::w4a16;
namespace skinny = xgemm::cuda::w4a16::sm90::skinny;
namespace wgmma = xgemm::cuda::w4a16::sm90::wgmma;
namespace register_resident = xgemm::cuda::w4a16::sm90::register_resident;

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

// A choice, and the fields that every kernel shows.
struct Chosen {
  w4a16::Choice choice;
  w4a16::Fields fields;
};

std::optional<Chosen> chosen(const w4a16::Problem& problem,
                             const std::optional<w4a16::Choice>& choice) {
  if (!choice) return std::nullopt;
  return Chosen{*choice, w4a16::fields_of(problem, *choice)};
}

void bind_choice(py::module_& m) {
  using w4a16::Fields;
  const auto of = [](auto Fields::* member) {
    return [member](const Chosen& chosen) { return chosen.fields.*member; };
  };
  py::class_<Chosen>(m, "W4A16Choice")
      .def_property_readonly("kernel", of(&Fields::kernel))
      .def_property_readonly("block_m", of(&Fields::block_m))
      .def_property_readonly("block_n", of(&Fields::block_n))
      .def_property_readonly("warps", of(&Fields::warps))
      .def_property_readonly("stages", of(&Fields::stages))
      .def_property_readonly("cluster", of(&Fields::cluster))
      .def_property_readonly("ctas", of(&Fields::ctas))
      .def_property_readonly("splits", of(&Fields::splits))
      .def_property_readonly("stream_k", of(&Fields::stream_k))
      .def_property_readonly("copy_x", of(&Fields::copy_x))
      .def_property_readonly("workspace_bytes", of(&Fields::workspace_bytes))
      .def_property_readonly("reason", [](const Chosen& c) { return c.choice.reason; })
      .def_property_readonly(
          "split", [](const Chosen& c) { return std::get<skinny::Config>(c.choice.config).split; });
}

py::dict constants() {
  py::dict all;
  all["MOST_ROWS"] = skinny::kMaxRows;
  all["MOST_STAGES"] = skinny::kMaxStages;
  all["MOST_BUFFERS"] = skinny::kMaxBuffers;
  all["SMEM_BYTES"] = skinny::kSmemBytes;
  all["X_PADDING"] = skinny::kXPadding;
  all["BARRIER_BYTES"] = sizeof(skinny::Barriers);
  all["INBOX_BYTES"] = skinny::kInboxBytes;
  return all;
}

}  // namespace

void define(py::module_& m) {
  py::class_<w4a16::Problem>(m, "W4A16Problem")
      .def(py::init(&make_problem), py::kw_only(), py::arg("m"), py::arg("n"), py::arg("k"),
           py::arg("group_size") = 128, py::arg("zeros") = false, py::arg("bf16_scales") = false,
           py::arg("dtype") = "float16", py::arg("batch_invariant") = false,
           py::arg("perm") = false);
  bind_choice(m);
  m.def(
      "select_w4a16",
      [](const w4a16::Problem& problem, int capability, int sm_count, const Clocks& clocks) {
        const auto device = device_of(capability, sm_count, clocks);
        return chosen(problem, w4a16::select_config(problem, device));
      },
      py::arg("problem"), py::arg("capability"), py::arg("sm_count"), py::arg("clocks") = Clocks{});
  m.def(
      "remembered_w4a16",
      [](const w4a16::Problem& problem, int capability, int sm_count) {
        return chosen(problem, w4a16::remembered_config(problem, device_of(capability, sm_count)));
      },
      py::arg("problem"), py::arg("capability"), py::arg("sm_count"));
  // One kernel's own choice, whatever select_config prefers.
  const auto define_choice = [&m](const char* name, auto select) {
    m.def(
        name,
        [select](const w4a16::Problem& problem, int capability, int sm_count) {
          const auto scored = select(problem, device_of(capability, sm_count), nullptr);
          return scored ? chosen(problem, scored->choice) : std::nullopt;
        },
        py::arg("problem"), py::arg("capability"), py::arg("sm_count"));
  };
  define_choice("select_w4_rows", &skinny::select);
  define_choice("select_w4_wgmma", &wgmma::select);
  define_choice("select_w4_whole", &register_resident::select);
  m.def("w4_wgmma_may_split", &wgmma::may_split, py::arg("consumers"), py::arg("rows"));
#define XGEMM_TILE(warpgroups, rows, cycles) std::pair(rows, 64 * warpgroups),
#define XGEMM_SMALL_TILE(blocks, parts, rows, cycles) std::pair(rows, 64 * blocks),
  m.attr("W4_WGMMA_TILES") = std::vector<std::pair<int, int>>{
      XGEMM_W4_SMALL_M_TILES(XGEMM_SMALL_TILE) XGEMM_W4_MEDIUM_M_TILES(XGEMM_TILE)
          XGEMM_W4_LARGE_M_TILES(XGEMM_TILE)};  // rows of X, columns
#undef XGEMM_SMALL_TILE
#undef XGEMM_TILE
  m.def(
      "explain_w4a16",
      [](const w4a16::Problem& problem, const Chosen& chosen) {
        return w4a16::explain(problem, chosen.choice);
      },
      py::arg("problem"), py::arg("choice"));
  m.def(
      "explain_w4a16_json",
      [](const w4a16::Problem& problem, int capability, int sm_count, bool candidates,
         const Clocks& clocks) {
        return w4a16::explain_json(problem, device_of(capability, sm_count, clocks), candidates);
      },
      py::arg("problem"), py::arg("capability"), py::arg("sm_count"), py::arg("candidates") = true,
      py::arg("clocks") = Clocks{});

  py::class_<skinny::SharedPlan>(m, "W4RowsSharedPlan")
      .def_readonly("inbox", &skinny::SharedPlan::inbox)
      .def_readonly("x", &skinny::SharedPlan::x)
      .def_readonly("x_sums", &skinny::SharedPlan::x_sums)
      .def_readonly("sums", &skinny::SharedPlan::sums)
      .def_readonly("pipeline", &skinny::SharedPlan::pipeline)
      .def_readonly("bytes", &skinny::SharedPlan::bytes);
  py::class_<skinny::Split>(m, "W4RowsSplit")
      .def_readonly("rows", &skinny::Split::rows)
      .def_readonly("warps", &skinny::Split::warps)
      .def_readonly("stages", &skinny::Split::stages)
      .def_readonly("cluster", &skinny::Split::cluster)
      .def_readonly("strips", &skinny::Split::strips)
      .def_readonly("units", &skinny::Split::units)
      .def_readonly("piece_bytes", &skinny::Split::piece_bytes)
      .def_property_readonly("most_units", &skinny::Split::most_units)
      .def_property_readonly("least_units", &skinny::Split::least_units)
      .def_property_readonly("x_pitch", &skinny::Split::x_pitch)
      .def_property_readonly("buffers", &skinny::Split::buffers)
      .def("plan", &skinny::Split::plan);
  m.def(
      "w4_rows_share_tiles",
      [](int strips, int clusters, int tile_strips) {
        const skinny::Waves waves = skinny::share_tiles(strips, clusters, tile_strips);
        return std::make_tuple(waves.each, waves.extra, waves.extra_strips);
      },
      py::arg("strips"), py::arg("clusters"), py::arg("tile_strips"));
  m.def("w4_rows_sum_pitch", &skinny::sum_pitch, py::arg("strips"));
  m.def("w4_rows_most_warps", &skinny::most_warps, py::arg("mma_tiles"), py::arg("fine"));
  m.attr("W4_ROWS") = constants();
}

}  // namespace bind_w4a16
