#include "cpu/sgemm/kernels.h"

#include "cpu/sgemm/bf16.h"

namespace xgemm::cpu::dense {

namespace {

Kernels with(const Kernels& table, const Bf16Kernels& bf16) {
  Kernels both = table;
  both.bf16 = &bf16;
  return both;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels dot_products = with(kAvx512Kernels, kAvx512Bf16Kernels);
  static const Kernels tiles = with(kAvx512Kernels, kAmxKernels);
  switch (isa()) {
    case Isa::kGeneric:
      return kGenericKernels;
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
    case Isa::kAvx512Vnni:
      return kAvx512Kernels;
    case Isa::kAvx512Bf16:
      return dot_products;
    case Isa::kAmx:
      return tiles;
  }
  return kGenericKernels;
}

}  // namespace xgemm::cpu::dense
