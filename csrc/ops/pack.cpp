// pack_w4 and unpack_w4 on the CPU: codes, scales and zeros <-> the packed layout.
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <tuple>

#include "cpu/w4a16/api.h"
#include "ops/boxed.h"
#include "ops/w4_checks.h"

namespace xgemm::ops {
namespace {

void require_codes(const char* op, const uint8_t* codes, const w4::Layout& layout) {
  const int64_t count = layout.n * layout.k;
  uint8_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits |= codes[i];
  if (bits <= 15) return;
  for (int64_t i = 0; i < count; ++i) {
    if (codes[i] > 15) reject_code(op, codes[i], i, layout);
  }
}

void require_finite(const char* op, const char* name, const uint16_t* values,
                    const w4::Layout& layout, uint16_t exponent) {
  for (int64_t i = 0; i < layout.groups() * layout.n; ++i) {
    if ((values[i] & exponent) == exponent) {
      reject_non_finite(op, name, values[i], exponent, i, layout);
    }
  }
}

Tensor pack_w4(const Tensor& codes, const Tensor& scales, const std::optional<Tensor>& zeros,
               int64_t group_size) {
  constexpr const char* kOp = "pack_w4";
  const TensorView codes_view(kOp, "codes", codes), scales_view(kOp, "scales", scales);
  std::optional<TensorView> zeros_view;
  if (zeros) zeros_view.emplace(kOp, "zeros", *zeros);
  const w4::Layout layout = require_pack_inputs(kOp, codes_view, scales_view,
                                                zeros_view ? &*zeros_view : nullptr, group_size);

  const Tensor dense_codes = torch::stable::contiguous(codes);
  const Tensor dense_scales = torch::stable::contiguous(scales);
  const Tensor dense_zeros = zeros ? torch::stable::contiguous(*zeros) : dense_scales;
  const auto* code_data = static_cast<const uint8_t*>(dense_codes.const_data_ptr());
  const auto* scale_data = static_cast<const uint16_t*>(dense_scales.const_data_ptr());
  const auto* zero_data = static_cast<const uint16_t*>(dense_zeros.const_data_ptr());
  const bool bf16_scales = scales_view.dtype_code == torch_code(DType::kBF16);
  require_codes(kOp, code_data, layout);
  require_finite(kOp, "scales", scale_data, layout, exponent_bits(bf16_scales));
  if (zeros) require_finite(kOp, "zeros", zero_data, layout, exponent_bits(false));

  Tensor packed = new_packed(layout, codes_view);
  if (layout.bytes() > 0) {
    cpu::w4_pack(layout, code_data, scale_data, zeros ? zero_data : nullptr,
                 static_cast<uint8_t*>(packed.mutable_data_ptr()), TorchParallel());
  }
  return packed;
}

std::tuple<Tensor, Tensor, Tensor> unpack_w4(const Tensor& qweight, int64_t n, int64_t k,
                                             int64_t group_size, bool bf16_scales, bool zeros) {
  constexpr const char* kOp = "unpack_w4";
  const TensorView view(kOp, "qweight", qweight);
  const w4::Layout layout = require_layout(kOp, n, k, group_size, zeros);
  const PackedBytes packed(kOp, view, layout, bf16_scales);
  const Unpacked out = new_unpacked(layout, bf16_scales, view);
  if (layout.bytes() > 0) {
    cpu::w4_unpack(layout, packed.data(), static_cast<uint8_t*>(out.codes.mutable_data_ptr()),
                   static_cast<uint16_t*>(out.scales.mutable_data_ptr()),
                   zeros ? static_cast<uint16_t*>(out.zeros.mutable_data_ptr()) : nullptr,
                   TorchParallel());
  }
  return {out.codes, out.scales, out.zeros};
}

}  // namespace
}  // namespace xgemm::ops

STABLE_TORCH_LIBRARY_IMPL(xgemm, CPU, m) {
  m.impl("pack_w4", TORCH_BOX(&xgemm::ops::pack_w4));
  m.impl("unpack_w4", TORCH_BOX(&xgemm::ops::unpack_w4));
}
