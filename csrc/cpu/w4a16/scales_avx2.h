// 8 scales or zeros as floats.
#pragma once

#include "cpu/isa/avx2.h"

namespace xgemm::cpu::w4a16 {

XGEMM_INLINE_AVX2 __m256 load_8_fp16(const void* data) {
  return avx2::load8<DType::kF16>(static_cast<const uint16_t*>(data));
}

XGEMM_INLINE_AVX2 __m256 load_8_scales(const void* data, bool bf16) {
  const auto* bits = static_cast<const uint16_t*>(data);
  return bf16 ? avx2::load8<DType::kBF16>(bits) : avx2::load8<DType::kF16>(bits);
}

}  // namespace xgemm::cpu::w4a16
