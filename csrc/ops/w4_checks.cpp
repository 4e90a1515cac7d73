#include "ops/w4_checks.h"

#include <limits>

namespace xgemm::ops {

w4::Layout require_layout(const char* op, int64_t n, int64_t k, int64_t group_size, bool zeros) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();  // keeps every size in int64
  if (n < 0 || n > kMax) value_error(op, ": n must be in [0, ", kMax, "], got ", n);
  if (k < 0 || k > kMax) value_error(op, ": k must be in [0, ", kMax, "], got ", k);
  if (group_size != 32 && group_size != 64 && group_size != 128 && group_size != -1) {
    value_error(op, ": group_size must be 32, 64, 128 or -1, got ", group_size);
  }
  return {.n = n, .k = k, .group_size = group_size, .zeros = zeros};
}

void require_fp4_form(const char* op, bool fp4, const w4::Layout& layout, bool bf16_scales) {
  if (!fp4 || (layout.group_size == 32 && bf16_scales && !layout.zeros)) return;
  value_error(op, ": fp4 must have group_size=32, bf16_scales=true, zeros=false, got group_size=",
              layout.group_size, ", bf16_scales=", bf16_scales, ", zeros=", layout.zeros);
}

PackedBytes::PackedBytes(const char* op, const TensorView& qweight, const w4::Layout& layout,
                         bool bf16_scales) {
  require_dtype(op, "qweight", qweight, {DType::kU8});
  const int64_t expected[] = {layout.rows(), layout.row_bytes()};
  if (qweight.dim != 2 || qweight.sizes[0] != expected[0] || qweight.sizes[1] != expected[1]) {
    value_error(op, ": qweight must have the shape ", shape_of(expected, 2), " for n=", layout.n,
                ", k=", layout.k, ", group_size=", layout.group_size, ", bf16_scales=", bf16_scales,
                ", zeros=", layout.zeros, ", got ", shape_of(qweight));
  }
  if (!qweight.contiguous()) {
    value_error(op, ": qweight must be contiguous, got strides ", shape_of(qweight.strides, 2));
  }
  data_ = static_cast<const uint8_t*>(qweight.data());
  if (reinterpret_cast<uintptr_t>(data_) % 16 == 0) return;
  AtenTensorHandle copy = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_clone(qweight.handle, &copy));
  copy_.reset(copy);
  data_ = static_cast<const uint8_t*>(TensorView(copy_).data());
}

void require_perm(const char* op, const TensorView& perm, int64_t k, const char* other_name,
                  const TensorView& other) {
  require_dtype(op, "perm", perm, {DType::kI32});
  require_same_device(op, "perm", perm, other_name, other);
  require_shape(op, "perm", perm, {k});
  if (!perm.contiguous()) {
    value_error(op, ": perm must be contiguous, got a stride of ", perm.strides[0]);
  }
}

void require_perm_values(const char* op, const int32_t* perm, int64_t k) {
  // A loop without an exit in it is vectorized; which entry is at fault is looked for only then.
  uint32_t outside = 0;
  for (int64_t j = 0; j < k; ++j) outside |= static_cast<uint32_t>(perm[j]) >= k ? 1u : 0u;
  if (outside == 0) return;
  for (int64_t j = 0; j < k; ++j) {
    if (perm[j] < 0 || perm[j] >= k) {
      value_error(op, ": perm must hold channels in [0, ", k, "), got ", perm[j], " at index ", j);
    }
  }
}

w4::Layout require_pack_inputs(const char* op, const TensorView& codes, const TensorView& scales,
                               const TensorView* zeros, int64_t group_size) {
  require_dtype(op, "codes", codes, {DType::kU8});
  if (codes.dim != 2) {
    value_error(op, ": codes must have the shape [N, K], got ", shape_of(codes));
  }
  const w4::Layout layout =
      require_layout(op, codes.sizes[0], codes.sizes[1], group_size, zeros != nullptr);
  require_dtype(op, "scales", scales, {DType::kF16, DType::kBF16});
  require_shape(op, "scales", scales, {layout.groups(), layout.n});
  require_same_device(op, "scales", scales, "codes", codes);
  if (zeros != nullptr) {
    require_dtype(op, "zeros", *zeros, {DType::kF16});
    require_shape(op, "zeros", *zeros, {layout.groups(), layout.n});
    require_same_device(op, "zeros", *zeros, "codes", codes);
  }
  return layout;
}

void reject_code(const char* op, int code, int64_t index, const w4::Layout& layout) {
  value_error(op, ": codes must be in 0..15, got ", code, " at [", index / layout.k, ", ",
              index % layout.k, "]");
}

void reject_non_finite(const char* op, const char* name, uint16_t bits, uint16_t exponent,
                       int64_t index, const w4::Layout& layout) {
  const bool infinite = (bits & 0x7fff) == exponent;
  value_error(op, ": ", name, " must be finite, got ", infinite ? "inf" : "nan", " at [",
              index / layout.n, ", ", index % layout.n, "]");
}

Tensor new_packed(const w4::Layout& layout, const TensorView& like) {
  return new_output({layout.rows(), layout.row_bytes()}, torch_code(DType::kU8), like);
}

Unpacked new_unpacked(const w4::Layout& layout, bool bf16_scales, const TensorView& like) {
  const DType scale_dtype = bf16_scales ? DType::kBF16 : DType::kF16;
  return {.codes = new_output({layout.n, layout.k}, torch_code(DType::kU8), like),
          .scales = new_output({layout.groups(), layout.n}, torch_code(scale_dtype), like),
          .zeros = new_output({layout.zeros ? layout.groups() : 0, layout.n},
                              torch_code(DType::kF16), like)};
}

}  // namespace xgemm::ops
