// Few rows of A with AVX-512: the sources of the AVX2 build, over vectors of 16 floats.
#include <algorithm>

#include "cpu/isa/avx512.h"
#include "cpu/sgemm/kernels_avx512.h"

#define XGEMM_GEMV_TARGET XGEMM_TARGET_AVX512

namespace xgemm::cpu::dense {
namespace {

using avx2::Element;
using avx512::load_some;
using Vec = __m512;
constexpr int64_t kLanes = 16;

XGEMM_INLINE_AVX512 Vec zero() { return _mm512_setzero_ps(); }
XGEMM_INLINE_AVX512 Vec splat(const float* x) { return _mm512_set1_ps(*x); }
template <DType kType>
XGEMM_INLINE_AVX512 Vec load(const typename Element<kType>::Type* x) {
  return avx512::load16<kType>(x);
}
XGEMM_INLINE_AVX512 void store(float* out, Vec x) { _mm512_storeu_ps(out, x); }
XGEMM_INLINE_AVX512 Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

// The sums of 4 vectors.
XGEMM_INLINE_AVX512 __m128 sum_each(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(avx512::add_halves(a), avx512::add_halves(b)),
                                     _mm256_hadd_ps(avx512::add_halves(c), avx512::add_halves(d)));
  return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

// Columns of B that a tile of `rows` rows takes: 4 rows of 6 sums leave 8 registers.
constexpr int tile_columns(int rows) { return rows == 1 ? 8 : 6; }

#include "cpu/sgemm/gemv.inl"

}  // namespace

void dot_columns_avx512(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                        const void* b, DType b_dtype, int64_t ldb, float* sums, int64_t lds) {
  switch (b_dtype) {
    case DType::kF16:
      return dot_columns<DType::kF16>(rows, cols, k, a, lda, b, ldb, sums, lds);
    case DType::kBF16:
      return dot_columns<DType::kBF16>(rows, cols, k, a, lda, b, ldb, sums, lds);
    default:
      return dot_columns<DType::kF32>(rows, cols, k, a, lda, b, ldb, sums, lds);
  }
}

void add_rows_avx512(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                     const void* b, DType b_dtype, int64_t ldb, float* sums, int64_t lds) {
  switch (b_dtype) {
    case DType::kF16:
      return add_groups<DType::kF16>(rows, cols, k, a, lda, b, ldb, sums, lds);
    case DType::kBF16:
      return add_groups<DType::kBF16>(rows, cols, k, a, lda, b, ldb, sums, lds);
    default:
      return add_groups<DType::kF32>(rows, cols, k, a, lda, b, ldb, sums, lds);
  }
}

}  // namespace xgemm::cpu::dense
