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

// 128 bits l of the result: the sums over 128 bits l of 4 vectors.
XGEMM_INLINE_AVX512 Vec sum4(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const Vec cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
}
// The sums over the 4 parts of 128 bits of x, and of y: parts 0 and 1 of x + 2, x + 3, then y's.
XGEMM_INLINE_AVX512 Vec add_parts(Vec x, Vec y) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
}
// 4 vectors of sum4, each added up: one for each 128 bits.
XGEMM_INLINE_AVX512 Vec sum_parts(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = add_parts(a, b), cd = add_parts(c, d);
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
// 128 bits of x. The masked form, all lanes kept: gcc 12 warns of the plain one's operand.
template <int kPart>
XGEMM_INLINE_AVX512 __m128 part_of(Vec x) {
  return _mm512_maskz_extractf32x4_ps(0xf, x, kPart);
}

// sums[i * lds + j] = the sum over acc[i][j]. By trees for many vectors at once: 2 shuffles each.
template <int kRows, int kCols>
XGEMM_INLINE_AVX512 void store_sums(const Vec (&acc)[kRows][kCols], float* sums, int64_t lds) {
  static_assert(kCols == 6 || kCols == 1 || (kRows == 1 && (kCols == 4 || kCols == 8)));
  // 4 columns of a row at a time, then one column of all rows, or 2 columns of 2 rows at a time.
  constexpr int kFours = kCols / 4 * kRows, kTwos = kCols == 6 ? (kRows + 1) / 2 : 0;
  const Vec none = zero();
  Vec fours[4] = {none, none, none, none}, twos[2] = {none, none};
  if constexpr (kCols == 1) {
    fours[0] = sum4(acc[0][0], kRows > 1 ? acc[kRows > 1 ? 1 : 0][0] : none,
                    kRows > 2 ? acc[kRows > 2 ? 2 : 0][0] : none,
                    kRows > 3 ? acc[kRows > 3 ? 3 : 0][0] : none);
  }
#pragma GCC unroll 4
  for (int f = 0; f < kFours; ++f) {
    const Vec* row = acc[f % kRows] + f / kRows * 4;
    fours[f] = sum4(row[0], row[1], row[2], row[3]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < kTwos; ++i) {
    const Vec *row = acc[2 * i] + 4, *below = acc[2 * i + 1 < kRows ? 2 * i + 1 : 2 * i] + 4;
    twos[i] = sum4(row[0], row[1], below[0], below[1]);
  }
  const Vec sum = sum_parts(fours[0], fours[1], fours[2], fours[3]);
  const __m128 parts[4] = {part_of<0>(sum), part_of<1>(sum), part_of<2>(sum), part_of<3>(sum)};
#pragma GCC unroll 4
  for (int f = 0; f < kFours; ++f) {
    _mm_storeu_ps(sums + f % kRows * lds + f / kRows * 4, parts[f]);
  }
  if constexpr (kCols == 1) {
    alignas(16) float dots[4];
    _mm_store_ps(dots, parts[0]);
    for (int i = 0; i < kRows; ++i) sums[i * lds] = dots[i];
  }
  if constexpr (kTwos > 0) {
    const Vec half = add_parts(twos[0], twos[1]);
    const Vec both = _mm512_add_ps(half, _mm512_shuffle_f32x4(half, half, 0xb1));
    const __m128 pairs[2] = {part_of<0>(both), part_of<2>(both)};
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const __m128 pair = pairs[i / 2];
      _mm_storel_pi(reinterpret_cast<__m64*>(sums + i * lds + 4),
                    i % 2 == 0 ? pair : _mm_movehl_ps(pair, pair));
    }
  }
}

// Columns of B that a tile of `rows` rows takes: 4 rows of 6 sums leave 8 registers.
constexpr int tile_columns(int rows) { return rows == 1 ? 8 : 6; }
constexpr int64_t kDotColumns = 6;

#include "cpu/sgemm/gemv.inl"

}  // namespace

void dot_columns_avx512(int64_t rows, int64_t cols, int64_t k, const float* a, int64_t lda,
                        const void* b, DType b_dtype, int64_t ldb, bool ahead, float* sums,
                        int64_t lds) {
  switch (b_dtype) {
    case DType::kF16:
      return dot_columns<DType::kF16>(rows, cols, k, a, lda, b, ldb, ahead, sums, lds);
    case DType::kBF16:
      return dot_columns<DType::kBF16>(rows, cols, k, a, lda, b, ldb, ahead, sums, lds);
    default:
      return dot_columns<DType::kF32>(rows, cols, k, a, lda, b, ldb, ahead, sums, lds);
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
