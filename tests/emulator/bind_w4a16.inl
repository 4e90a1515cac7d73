// Products with a packed 4-bit weight, as functions over addresses.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "cuda/w4a16/api.h"
#include "cuda/w4a16/select.h"
#include "cuda/w4a16/sm80/plan.h"
#include "cuda/w4a16/sm80/select.h"
#include "cuda/w4a16/sm90/register_resident/select.h"
#include "cuda/w4a16/sm90/skinny/select.h"
#include "cuda/w4a16/sm90/wgmma/select.h"
#include "cuda/w4a16/sm90/wgmma/tile.h"
#include "emulator/engine.h"

namespace bind_w4a16 {

namespace py = pybind11;
namespace w4a16 = xgemm::cuda::w4a16;
namespace emulator = xgemm::emulator;

namespace {

using Address = uintptr_t;
using Matrix = std::tuple<Address, int64_t, int64_t>;  // strides of rows and columns, in elements

w4a16::Problem make_problem(int64_t m, std::tuple<int64_t, int64_t, int64_t> layout, bool zeros,
                            bool bf16_scales, int dtype, Address weight, const Matrix& x,
                            const Matrix& d, Address perm, Address bias, int64_t bias_stride,
                            int activation, bool batch_invariant, bool overlaps_previous) {
  w4a16::Problem problem;
  problem.m = m;
  const auto [n, k, group_size] = layout;
  problem.weight = {
      reinterpret_cast<const uint8_t*>(weight), {n, k, group_size, zeros}, bf16_scales};
  problem.dtype = static_cast<xgemm::DType>(dtype);
  std::tie(std::ignore, problem.x_row_stride, problem.x_col_stride) = x;
  problem.x = reinterpret_cast<const void*>(std::get<0>(x));
  std::tie(std::ignore, problem.d_row_stride, problem.d_col_stride) = d;
  problem.d = reinterpret_cast<void*>(std::get<0>(d));
  problem.perm = reinterpret_cast<const int32_t*>(perm);
  problem.bias = reinterpret_cast<const void*>(bias), problem.bias_stride = bias_stride;
  problem.activation = static_cast<xgemm::Activation>(activation);
  problem.batch_invariant = batch_invariant;
  problem.overlaps_previous = overlaps_previous;
  return problem;
}

void require_ok(const xgemm::Status& status) {
  if (status.ok()) return;
  throw std::runtime_error(std::string(status.where) + ": " + cudaGetErrorString(status.error));
}

void launch(const w4a16::Problem& problem, const w4a16::Choice& choice) {
  const emulator::Workspace workspace(choice.workspace_bytes);
  require_ok(w4a16::launch(problem, choice, workspace.get(), nullptr));
}

using Fields = std::map<std::string, int>;

// Sets the named members of a configuration.
void set_fields(const Fields& fields, const std::map<std::string, int*>& members) {
  for (const auto& [name, value] : fields) *members.at(name) = value;
}

// A choice with another tile of the same kernel, and the workspace that it wants, to the byte.
w4a16::Choice with_fields(const w4a16::Problem& problem, w4a16::Choice choice,
                          const Fields& fields) {
  if (auto* sm80 = std::get_if<w4a16::sm80::Config>(&choice.config)) {
    const int64_t copy = choice.workspace_bytes - sm80->partials_bytes;
    set_fields(fields, {{"block_m", &sm80->block_m},
                        {"block_n", &sm80->block_n},
                        {"stages", &sm80->stages},
                        {"splits", &sm80->splits}});
    const auto params = w4a16::sm80::make_params(problem);
    sm80->rows_per_launch = w4a16::sm80::rows_per_launch(params, sm80->splits);
    const int64_t partials = 4 * sm80->splits * sm80->rows_per_launch * params.partial_stride;
    sm80->partials_bytes = sm80->splits > 1 ? xgemm::round_up<int64_t>(partials, 256) : 0;
    choice.workspace_bytes = sm80->partials_bytes + copy;
  } else if (auto* skinny = std::get_if<w4a16::sm90::skinny::Config>(&choice.config)) {
    w4a16::sm90::skinny::Split& split = skinny->split;
    set_fields(fields, {{"strips", &split.strips},
                        {"cluster", &split.cluster},
                        {"warps", &split.warps},
                        {"stages", &split.stages},
                        {"clusters", &skinny->clusters}});
    split.piece_bytes = static_cast<int>(split.strips * problem.weight.layout.strip_bytes());
  } else {
    auto& wgmma = std::get<w4a16::sm90::wgmma::Config>(choice.config);
    int stream_k = 0;
    set_fields(fields, {{"consumers", &wgmma.consumers},
                        {"parts", &wgmma.parts},
                        {"rows", &wgmma.rows},
                        {"sharers", &wgmma.sharers},
                        {"splits", &wgmma.splits},
                        {"clusters", &wgmma.clusters},
                        {"stream_k", &stream_k}});
    wgmma.stream_k = stream_k != 0;
    wgmma.by_rows = problem.batch_invariant && wgmma.stream_k && problem.m > wgmma.rows;
    const int64_t copied = problem.m * xgemm::round_up<int64_t>(problem.weight.layout.k, 8) * 2;
    choice.workspace_bytes = wgmma.copy_x ? copied : 0;
    if (wgmma.stream_k) {
      choice.workspace_bytes +=
          w4a16::sm90::wgmma::stream_k_workspace(wgmma.rows, wgmma.columns(), wgmma.ctas()).bytes();
    }
  }
  return choice;
}

using Extents = std::tuple<int64_t, int64_t>;

// Columns and channels from `begin` on, into a row-major destination.
void dequantize(const w4a16::Problem& problem, const Extents& begin, const Extents& extents,
                Address dst, int64_t dst_row_stride, int dtype) {
  require_ok(w4a16::dequantize({.weight = problem.weight,
                                .column = std::get<0>(begin),
                                .channel = std::get<1>(begin),
                                .columns = std::get<0>(extents),
                                .channels = std::get<1>(extents),
                                .dst = reinterpret_cast<void*>(dst),
                                .dst_row_stride = dst_row_stride,
                                .dtype = static_cast<xgemm::DType>(dtype)},
                               nullptr));
}

void gather(const Extents& of_dst, const Extents& of_src, int64_t item_size, const Matrix& src,
            const Matrix& dst, Address from) {
  w4a16::Gather gather;
  std::tie(gather.rows, gather.cols) = of_dst;
  std::tie(gather.src_rows, gather.src_cols) = of_src;
  gather.item_size = item_size;
  std::tie(std::ignore, gather.src_row_stride, gather.src_col_stride) = src;
  gather.src = reinterpret_cast<const void*>(std::get<0>(src));
  std::tie(std::ignore, gather.dst_row_stride, gather.dst_col_stride) = dst;
  gather.dst = reinterpret_cast<void*>(std::get<0>(dst));
  gather.from = reinterpret_cast<const int32_t*>(from);
  require_ok(w4a16::gather_columns(gather, nullptr));
}

xgemm::cuda::W4Canonical canonical(Address codes, Address scales, Address zeros) {
  return {reinterpret_cast<const uint8_t*>(codes), reinterpret_cast<const uint16_t*>(scales),
          reinterpret_cast<const uint16_t*>(zeros)};
}

void bind_conversions(py::module_& m) {
  m.def("dequantize_w4", &dequantize);
  m.def("gather_columns", &gather);
  m.def("invert_permutation", [](Address perm, int64_t k, Address inverse) {
    require_ok(w4a16::invert_permutation(reinterpret_cast<const int32_t*>(perm), k,
                                         reinterpret_cast<int32_t*>(inverse), nullptr));
  });
  m.def("pack_w4", [](const w4a16::Problem& problem, Address codes, Address scales, Address zeros,
                      Address packed) {
    require_ok(xgemm::cuda::w4_pack(problem.weight.layout, canonical(codes, scales, zeros),
                                    reinterpret_cast<uint8_t*>(packed), nullptr));
  });
  m.def("unpack_w4",
        [](const w4a16::Problem& problem, Address codes, Address scales, Address zeros) {
          require_ok(xgemm::cuda::w4_unpack(
              problem.weight.layout, problem.weight.data, reinterpret_cast<uint8_t*>(codes),
              reinterpret_cast<uint16_t*>(scales), reinterpret_cast<uint16_t*>(zeros), nullptr));
        });
  m.def("find_faults_w4", [](const w4a16::Problem& problem, Address codes, Address scales,
                             Address zeros, Address faults) {
    require_ok(xgemm::cuda::w4_find_faults(problem.weight.layout, canonical(codes, scales, zeros),
                                           problem.weight.bf16_scales,
                                           reinterpret_cast<unsigned long long*>(faults), nullptr));
  });
}

}  // namespace

void define(py::module_& m) {
  py::class_<w4a16::Problem>(m, "W4A16Problem", py::module_local())
      .def(py::init(&make_problem), py::kw_only(), py::arg("m"), py::arg("layout"),
           py::arg("zeros"), py::arg("bf16_scales"), py::arg("dtype"), py::arg("weight"),
           py::arg("x"), py::arg("d"), py::arg("perm") = 0, py::arg("bias") = 0,
           py::arg("bias_stride") = 1, py::arg("activation") = 0,
           py::arg("batch_invariant") = false, py::arg("overlaps_previous") = false);
  py::class_<w4a16::Choice>(m, "W4A16Choice", py::module_local());
  m.def("select_w4a16", [](const w4a16::Problem& problem, int capability, int sm_count) {
    return w4a16::select_config(problem, {.sm_count = sm_count, .capability = capability});
  });
  // One kernel's own choice, whatever select_config prefers.
  const auto define_choice = [&m](const char* name, auto select) {
    m.def(name, [select](const w4a16::Problem& problem, int capability, int sm_count) {
      const auto scored =
          select(problem, {.sm_count = sm_count, .capability = capability}, nullptr);
      return scored ? std::optional(scored->choice) : std::nullopt;
    });
  };
  define_choice("select_w4a16_sm80", &w4a16::sm80::select);
  define_choice("select_w4a16_sm90_skinny", &w4a16::sm90::skinny::select);
  define_choice("select_w4a16_sm90_wgmma", &w4a16::sm90::wgmma::select);
  define_choice("select_w4a16_sm90_register_resident", &w4a16::sm90::register_resident::select);
  m.def("with_fields_w4a16", &with_fields);
  bind_conversions(m);
  m.def("explain_w4a16", &w4a16::explain);
  m.def("launch_w4a16", &launch);
}

}  // namespace bind_w4a16
