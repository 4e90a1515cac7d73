// Shows the device-free C++ to pytest. Built for the tests by tests/extensions.py and never
// shipped: the operators do not go through it. One source: pybind11's headers are compiled once.
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "bind_choose.inl"
#include "bind_gemm.inl"
#include "bind_layouts.inl"
#include "bind_moe.inl"
#include "bind_reduce.inl"
#include "bind_w4a16.inl"
#include "common/math.h"
#include "common/parallel.h"
#include "cpu/isa/isa.h"
#include "cpu/sgemm/blocking.h"
#include "w4/packed_layout.h"

namespace py = pybind11;

namespace {

void bind_layout(py::module_& m) {
  using xgemm::w4::Layout;
  m.attr("LAYOUT_VERSION") = xgemm::w4::kLayoutVersion;
  m.attr("SYMMETRIC_ZERO") = xgemm::w4::kSymmetricZero;
  py::class_<Layout>(m, "Layout")
      .def(py::init([](int64_t n, int64_t k, int64_t group_size, bool zeros) {
             return Layout{n, k, group_size, zeros};
           }),
           py::arg("n"), py::arg("k"), py::arg("group_size"), py::arg("zeros") = false)
      .def_property_readonly("rows", &Layout::rows)
      .def_property_readonly("units", &Layout::units)
      .def_property_readonly("groups", &Layout::groups)
      .def_property_readonly("strip_bytes", &Layout::strip_bytes)
      .def_property_readonly("unit_bytes", &Layout::unit_bytes)
      .def_property_readonly("row_bytes", &Layout::row_bytes)
      .def_property_readonly("bytes", &Layout::bytes)
      .def("nibble_index", &Layout::nibble_index, py::arg("column"), py::arg("channel"))
      .def("scale_offset", &Layout::scale_offset, py::arg("column"), py::arg("group"))
      .def("zero_offset", &Layout::zero_offset, py::arg("column"), py::arg("group"));
}

void bind_common(py::module_& m) {
  m.def(
      "split_range",
      [](int64_t total, int64_t parts, int64_t i, int64_t grain) {
        const xgemm::Range range = xgemm::split_range(total, parts, i, grain);
        return py::make_tuple(range.begin, range.end);
      },
      py::arg("total"), py::arg("parts"), py::arg("i"), py::arg("grain") = 1);
  m.def("ceil_div", &xgemm::ceil_div<int64_t>, py::arg("a"), py::arg("b"));
  m.def("round_up", &xgemm::round_up<int64_t>, py::arg("a"), py::arg("multiple"));
}

void bind_blocking(py::module_& m) {
  using xgemm::cpu::dense::Blocking;
  py::class_<Blocking>(m, "Blocking")
      .def_readonly("mr", &Blocking::mr)
      .def_readonly("nr", &Blocking::nr)
      .def_readonly("mc", &Blocking::mc)
      .def_readonly("kc", &Blocking::kc)
      .def_readonly("nc", &Blocking::nc);
  py::dict table;
  for (const auto isa :
       {xgemm::cpu::Isa::kGeneric, xgemm::cpu::Isa::kAvx2, xgemm::cpu::Isa::kAvx512,
        xgemm::cpu::Isa::kAvx512Vnni, xgemm::cpu::Isa::kAvx512Bf16, xgemm::cpu::Isa::kAmx}) {
    table[xgemm::cpu::name_of(isa)] = xgemm::cpu::dense::blocking_of(isa);
  }
  m.attr("BLOCKING") = table;
  m.def(
      "blocking_of",
      [](const std::string& name, int64_t l1, int64_t l2, int64_t l3) {
        for (int i = 0; i <= static_cast<int>(xgemm::cpu::Isa::kAmx); ++i) {
          const auto isa = static_cast<xgemm::cpu::Isa>(i);
          if (name == xgemm::cpu::name_of(isa)) {
            return xgemm::cpu::dense::blocking_of(isa, {l1, l2, l3});
          }
        }
        throw std::invalid_argument(name);
      },
      py::arg("isa"), py::arg("l1"), py::arg("l2"), py::arg("l3"));
  m.def("isa", [] { return xgemm::cpu::name_of(xgemm::cpu::isa()); });
  m.def("panel_rows", &xgemm::cpu::dense::panel_rows, py::arg("m"), py::arg("mr"));
}

}  // namespace

PYBIND11_MODULE(xgemm_testing, m) {
  bind_common(m);
  bind_layout(m);
  bind_blocking(m);
  bind_choose::define(m);
  bind_gemm::define(m);
  bind_w4a16::define(m);
  bind_moe::define(m);
  bind_reduce::define(m);
  bind_layouts::define(m);
}
