// Shows the emulator to pytest; each family of kernels has a bind_<family>.inl. One source:
// pybind11's headers are compiled once.
#include <pybind11/pybind11.h>

#include "emulator/bind_gemm.inl"
#include "emulator/bind_ladder.inl"
#include "emulator/bind_ldmatrix.inl"
#include "emulator/bind_mistakes.inl"
#include "emulator/bind_moe.inl"
#include "emulator/bind_reduce.inl"
#include "emulator/bind_tile_parts.inl"
#include "emulator/bind_w4a16.inl"
#include "emulator/block_order.h"
#include "emulator/engine.h"
#include "emulator/runtime.h"

namespace py = pybind11;
namespace emulator = xgemm::emulator;

PYBIND11_MODULE(xgemm_emulator, m) {
  m.def("allocate", [](size_t bytes, bool at_front) {
    return reinterpret_cast<uintptr_t>(emulator::allocate_guarded(bytes, 16, at_front));
  });
  m.def("make_read_only",
        [](uintptr_t memory) { emulator::make_read_only(reinterpret_cast<void*>(memory)); });
  m.def("free", [](uintptr_t memory) { emulator::free_guarded(reinterpret_cast<void*>(memory)); });
  m.def("use_device", &emulator::use_device, py::arg("capability"), py::arg("sm_count"));
  m.def(
      "set_options",
      [](bool late_copies, bool late_products, uint32_t seed, bool descending) {
        emulator::options = {late_copies, late_products, seed};
        emulator::descending_blocks = descending;
      },
      py::arg("late_copies"), py::arg("late_products"), py::arg("seed"), py::arg("descending"));
  bind_gemm::define(m);
  bind_w4a16::define(m);
  bind_moe::define(m);
  bind_reduce::define(m);
  bind_ladder::define(m);
  bind_ldmatrix::define(m);
  bind_mistakes::define(m);
  bind_tile_parts::define(m);
}
