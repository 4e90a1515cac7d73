// Which kernel multiplies a mixture of experts on CUDA, and by tiles of how many rows.
#include <pybind11/pybind11.h>

#include "cuda/w4a16/grouped/select.h"
#include "device.h"

namespace bind_moe {

namespace py = pybind11;
namespace grouped = xgemm::cuda::w4a16::grouped;

void define(py::module_& m) {
  m.def(
      "select_moe_wgmma",
      [](int64_t experts, int64_t slots, int64_t n, int64_t k, bool zeros, bool fp4, bool fp32,
         bool bf16, bool per_channel, bool wanted, int capability) {
        grouped::Problem problem;
        problem.experts = experts, problem.slots = slots;
        problem.weight.layout = {n, k, per_channel ? -1 : fp4 ? 32 : 128, zeros};
        problem.weight.bf16_scales = problem.fp4 = fp4;
        problem.dtype = fp32 ? xgemm::DType::kF32 : bf16 ? xgemm::DType::kBF16 : xgemm::DType::kF16;
        if (wanted) problem.wanted.kernel = grouped::Kernel::kWgmma;
        return grouped::select_wgmma(problem, device_of(capability, 132));
      },
      py::arg("experts"), py::arg("slots"), py::arg("n"), py::arg("k"), py::kw_only(),
      py::arg("zeros") = false, py::arg("fp4") = false, py::arg("fp32") = false,
      py::arg("bf16") = false, py::arg("per_channel") = false, py::arg("wanted") = false,
      py::arg("capability") = 90);
}

}  // namespace bind_moe
