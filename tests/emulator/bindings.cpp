// Shows the emulator to pytest; each family of kernels has a bind_<family>.cpp.
#include <pybind11/pybind11.h>

#include "emulator/block_order.h"
#include "emulator/engine.h"
#include "emulator/runtime.h"

namespace py = pybind11;
namespace emulator = xgemm::emulator;

void bind_gemm(py::module_& m);
void bind_w4a16(py::module_& m);
void bind_moe(py::module_& m);
void bind_reduce(py::module_& m);
void bind_ladder(py::module_& m);
void bind_ldmatrix(py::module_& m);
void bind_mistakes(py::module_& m);
void bind_tile_parts(py::module_& m);

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
  bind_gemm(m);
  bind_w4a16(m);
  bind_moe(m);
  bind_reduce(m);
  bind_ladder(m);
  bind_ldmatrix(m);
  bind_mistakes(m);
  bind_tile_parts(m);
}
