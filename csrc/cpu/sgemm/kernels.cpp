#include "cpu/sgemm/kernels.h"

namespace xgemm::cpu::dense {

const Kernels& kernels() {
  switch (isa()) {
    case Isa::kGeneric:
      return kGenericKernels;
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
    case Isa::kAvx512Vnni:
      return kAvx512Kernels;
  }
  return kGenericKernels;
}

}  // namespace xgemm::cpu::dense
