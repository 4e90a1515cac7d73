// What the ops over packed 4-bit weights check, on every device.
#pragma once

#include <cstdint>

#include "ops/checks.h"
#include "w4/packed_layout.h"

namespace xgemm::ops {

// The layout of a weight [n, k], after n, k and group_size are found to be in range: no size may be
// computed from them before.
w4::Layout require_layout(const char* op, int64_t n, int64_t k, int64_t group_size, bool zeros);

// MXFP4 has one form: where `fp4`, another one is refused.
void require_fp4_form(const char* op, bool fp4, const w4::Layout& layout, bool bf16_scales);

// The bytes of a packed weight at a multiple of 16, as the kernels read them: qweight's own, or
// (a tensor in a mapped file begins anywhere) a copy.
class PackedBytes {
 public:
  // Refuses a qweight that is not uint8, of exactly the layout's size, and contiguous.
  PackedBytes(const char* op, const TensorView& qweight, const w4::Layout& layout,
              bool bf16_scales);

  const uint8_t* data() const { return data_; }

 private:
  OwnedTensor copy_;
  const uint8_t* data_;
};

// perm is int32 [k], contiguous, on a's device. Its values are checked by require_perm_values (CPU)
// or by the kernel.
void require_perm(const char* op, const TensorView& perm, int64_t k, const char* other_name,
                  const TensorView& other);
void require_perm_values(const char* op, const int32_t* perm, int64_t k);

// The tensors that pack_w4 is given: codes uint8 [n, k], scales fp16 or bf16 [groups, n], zeros
// fp16 [groups, n] or null, all on one device. Their values are not looked at.
w4::Layout require_pack_inputs(const char* op, const TensorView& codes, const TensorView& scales,
                               const TensorView* zeros, int64_t group_size);

// What pack_w4 says of a code above 15 and of a scale or zero that is not finite, at position
// `index` of the contiguous tensor.
[[noreturn]] void reject_code(const char* op, int code, int64_t index, const w4::Layout& layout);
[[noreturn]] void reject_non_finite(const char* op, const char* name, uint16_t bits,
                                    uint16_t exponent, int64_t index, const w4::Layout& layout);
// The bits that are all set in an infinity or a NaN.
inline uint16_t exponent_bits(bool bf16) { return bf16 ? 0x7f80 : 0x7c00; }

// Outputs of pack_w4 and unpack_w4, on `like`'s device.
Tensor new_packed(const w4::Layout& layout, const TensorView& like);
struct Unpacked {
  Tensor codes;   // uint8 [n, k]
  Tensor scales;  // fp16 or bf16 [groups, n]
  Tensor zeros;   // fp16 [groups, n], or [0, n] where the format has none
};
Unpacked new_unpacked(const w4::Layout& layout, bool bf16_scales, const TensorView& like);

}  // namespace xgemm::ops
