// Dequantizes half a strip (64 channels of 16 output columns) to fp32: what the panels are made of.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/isa/convert.h"
#include "cpu/w4a16/api.h"

namespace xgemm::cpu::w4a16 {

inline constexpr int64_t kHalfK = 64;
inline constexpr int64_t kHalfBytes = 512;
inline constexpr int64_t kColumns = w4::kStripColumns;

// First byte of the codes of the half strip at (column, channel), multiples of 16 and 64.
inline const uint8_t* half_codes(const W4Weight& weight, int64_t column, int64_t channel) {
  return weight.data + weight.layout.strip_offset(column, channel / w4::kUnitK) +
         channel % w4::kUnitK / kHalfK * kHalfBytes;
}

inline int64_t group_of(const w4::Layout& layout, int64_t channel) {
  return layout.per_channel() ? 0 : channel / layout.group_size;
}

// What the codes of E2M1 stand for: the sign in bit 3, two bits of exponent, one of mantissa.
inline constexpr float kFp4Magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
inline float fp4_value(int code) {
  return code & 8 ? -kFp4Magnitudes[code & 7] : kFp4Magnitudes[code];
}

// A scale (fp16 or bf16) or, with bf16 false, a zero point.
inline float load_scale(const uint8_t* bytes, bool bf16) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bf16 ? bf16_to_float(bits) : half_to_float(bits);
}

// out[p * stride + c] = w(column + c, channel + p), p in [0, 64), c in [0, 16). Columns and
// channels of the padding come out as anything at all.
using DequantHalf = void (*)(const W4Weight& weight, int64_t column, int64_t channel, float* out,
                             int64_t stride);
// out[j][c * stride + i] = w(column + c, channel + 16 * j + i), i in [0, 16), c in [0, 16).
using DequantHalfTransposed = void (*)(const W4Weight& weight, int64_t column, int64_t channel,
                                       float* const out[4], int64_t stride);

void dequant_half_generic(const W4Weight&, int64_t, int64_t, float*, int64_t);
void dequant_half_transposed_generic(const W4Weight&, int64_t, int64_t, float* const[4], int64_t);
void dequant_half_avx2(const W4Weight&, int64_t, int64_t, float*, int64_t);
void dequant_half_transposed_avx2(const W4Weight&, int64_t, int64_t, float* const[4], int64_t);

}  // namespace xgemm::cpu::w4a16
