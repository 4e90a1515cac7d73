#include "cpu/sgemm/kernels.h"

#include "cpu/sgemm/bf16.h"

namespace xgemm::cpu::dense {

namespace {

// The table with blocks for the caches of this machine.
Kernels here(const Kernels& table, const Bf16Kernels* bf16 = nullptr) {
  Kernels sized = table;
  sized.blocking = blocking_of(table.isa, cache_sizes());
  sized.bf16 = bf16;
  return sized;
}

Kernels choose() {
  switch (isa()) {
    case Isa::kGeneric:
      return here(kGenericKernels);
    case Isa::kAvx2:
      return here(kAvx2Kernels);
    case Isa::kAvx512:
    case Isa::kAvx512Vnni:
      return here(kAvx512Kernels);
    case Isa::kAvx512Bf16:
      return here(kAvx512Kernels, &kAvx512Bf16Kernels);
    case Isa::kAmx:
      return here(kAvx512Kernels, &kAmxKernels);
  }
  return here(kGenericKernels);
}

}  // namespace

const Kernels& kernels() {
  static const Kernels table = choose();
  return table;
}

}  // namespace xgemm::cpu::dense
