#include <bit>

#include "cpu/isa/avx512.h"
#include "cpu/w4a16/rows.h"

namespace xgemm::cpu::w4a16 {
namespace {

// values[0 .. count) = x as fp32, and 0 to the next multiple of 128.
template <DType kType>
XGEMM_TARGET_AVX512 float load_floats(const void* x, int64_t count, float* values) {
  const auto* from = static_cast<const typename avx512::Element<kType>::Type*>(x);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
  int64_t i = 0;
  for (; i < count; i += 16) {
    const __m512 v = count - i >= 16 ? avx512::load16<kType>(from + i)
                                     : avx512::load_some<kType>(from + i, count - i);
    largest = _mm512_max_epi32(largest, _mm512_and_si512(_mm512_castps_si512(v), magnitude));
    _mm512_storeu_ps(values + i, v);
  }
  for (; i % w4::kUnitK != 0; i += 16) _mm512_storeu_ps(values + i, _mm512_setzero_ps());
  return std::bit_cast<float>(_mm512_reduce_max_epi32(largest));
}

float load_any(const void* x, DType dtype, int64_t count, float* values) {
  switch (dtype) {
    case DType::kF16:
      return load_floats<DType::kF16>(x, count, values);
    case DType::kBF16:
      return load_floats<DType::kBF16>(x, count, values);
    default:
      return load_floats<DType::kF32>(x, count, values);
  }
}

}  // namespace

float load_row_avx512(const W4Problem& problem, int64_t row, float* values) {
  const void* x = static_cast<const char*>(problem.x) +
                  row * problem.x_row_stride * element_size(problem.dtype);
  if (problem.perm == nullptr && problem.x_col_stride == 1) {
    return load_any(x, problem.dtype, problem.weight.layout.k, values);
  }
  load_row(problem, row, values);
  return load_any(values, DType::kF32, padded_k(problem), values);
}

}  // namespace xgemm::cpu::w4a16
