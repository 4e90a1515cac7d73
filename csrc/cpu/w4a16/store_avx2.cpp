// The epilogue of a row of Y with AVX2.
#include "cpu/isa/avx2.h"
#include "cpu/w4a16/stream.h"

namespace xgemm::cpu::w4a16 {
namespace {

template <DType kType>
XGEMM_TARGET_AVX2 void store(const RowOutput& row, int64_t count, float unscale,
                             const float* values) {
  using T = typename avx2::Element<kType>::Type;
  const auto* bias = static_cast<const T*>(row.bias);
  auto* y = static_cast<T*>(row.y);
  const __m256 factor = _mm256_set1_ps(unscale);
  for (int64_t i = 0; i < count; i += 8) {
    const int64_t some = count - i;
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(values + i), factor);
    if (bias != nullptr) {
      v = _mm256_add_ps(
          v, some >= 8 ? avx2::load8<kType>(bias + i) : avx2::load_some<kType>(bias + i, some));
    }
    if (row.activation != Activation::kNone) v = avx2::activate8(row.activation, v);
    if (some >= 8) {
      avx2::store8<kType>(y + i, v);
    } else {
      avx2::store_some<kType>(y + i, v, some);
    }
  }
}

}  // namespace

void store_row_avx2(const RowOutput& row, DType dtype, int64_t count, float unscale,
                    const float* values) {
  switch (dtype) {
    case DType::kF16:
      return store<DType::kF16>(row, count, unscale, values);
    case DType::kBF16:
      return store<DType::kBF16>(row, count, unscale, values);
    default:
      return store<DType::kF32>(row, count, unscale, values);
  }
}

}  // namespace xgemm::cpu::w4a16
