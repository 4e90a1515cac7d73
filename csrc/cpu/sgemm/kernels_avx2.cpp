// The AVX2 table, and the end of a product, 8 columns at a time.
#include "cpu/sgemm/kernels_avx2.h"

#include "cpu/isa/avx2.h"
#include "cpu/sgemm/epilogue.h"
#include "cpu/sgemm/microkernel_avx2.h"

namespace xgemm::cpu::dense {
namespace {

constexpr Blocking kSizes = blocking_of(Isa::kAvx2);
static_assert(kSizes.mr == 6 && kSizes.nr == 16, "micro_avx2 below is 6 rows of 2 vectors");

// 8 elements from x on, or the first `count` of them and zeros.
XGEMM_INLINE_AVX2 __m256 load_any(const void* x, DType dtype, int64_t count) {
  const auto* bits = static_cast<const uint16_t*>(x);
  switch (dtype) {
    case DType::kF16:
      return count >= 8 ? avx2::load8<DType::kF16>(bits)
                        : avx2::load_some<DType::kF16>(bits, count);
    case DType::kBF16:
      return count >= 8 ? avx2::load8<DType::kBF16>(bits)
                        : avx2::load_some<DType::kBF16>(bits, count);
    default: {
      const auto* floats = static_cast<const float*>(x);
      return count >= 8 ? avx2::load8<DType::kF32>(floats)
                        : avx2::load_some<DType::kF32>(floats, count);
    }
  }
}

template <DType kType>
XGEMM_INLINE_AVX2 void store_any(void* out, __m256 x, int64_t count) {
  auto* elements = static_cast<typename avx2::Element<kType>::Type*>(out);
  if (count >= 8) {
    avx2::store8<kType>(elements, x);
  } else {
    avx2::store_some<kType>(elements, x, count);
  }
}

// Columns [j, j + count) of finish_rows, count at most 8. A bias that is not there is -0, which
// changes no sum.
template <DType kType>
XGEMM_INLINE_AVX2 void finish_columns(const Product& p, int64_t i0, int64_t j, int64_t rows,
                                      int64_t count, const float* sums, int64_t ld) {
  const __m256 alpha = _mm256_set1_ps(p.alpha), beta = _mm256_set1_ps(p.beta);
  const bool bias_down = p.bias.data != nullptr && p.bias.col_stride != 1;
  __m256 bias = _mm256_set1_ps(-0.0f);
  if (p.bias.data != nullptr && !bias_down) bias = load_any(at(p.bias, i0, j), p.bias.dtype, count);
  auto* out = static_cast<typename avx2::Element<kType>::Type*>(at(p.d, i0, j));
  const int64_t out_step = p.d.row_stride;
  if (p.beta == 0.0f && !bias_down && p.activation == Activation::kNone) {  // no branch for a row
    for (int64_t i = 0; i < rows; ++i, sums += ld, out += out_step) {
      const __m256 x = _mm256_mul_ps(alpha, load_any(sums, DType::kF32, count));
      store_any<kType>(out, _mm256_add_ps(x, bias), count);
    }
    return;
  }
  for (int64_t i = 0; i < rows; ++i, sums += ld, out += out_step) {
    __m256 x = _mm256_mul_ps(alpha, load_any(sums, DType::kF32, count));
    if (p.beta != 0.0f) {
      x = _mm256_fmadd_ps(beta, load_any(at(p.c, i0 + i, j), p.c.dtype, count), x);
    }
    if (bias_down) bias = _mm256_set1_ps(load_float(at(p.bias, i0 + i, j), p.bias.dtype));
    store_any<kType>(out, avx2::activate8(p.activation, _mm256_add_ps(x, bias)), count);
  }
}

template <DType kType>
XGEMM_TARGET_AVX2 void finish_rows(const Product& p, int64_t i0, int64_t j0, int64_t rows,
                                   int64_t cols, const float* sums, int64_t ld) {
  int64_t j = 0;
  for (; j + 8 <= cols; j += 8) finish_columns<kType>(p, i0, j0 + j, rows, 8, sums + j, ld);
  if (j < cols) finish_columns<kType>(p, i0, j0 + j, rows, cols - j, sums + j, ld);
}

}  // namespace

void finish_avx2(const Product& p, int64_t i0, int64_t j0, int64_t rows, int64_t cols,
                 const float* sums, int64_t ld) {
  const bool across = p.d.col_stride == 1 && (p.beta == 0.0f || p.c.col_stride == 1) &&
                      (p.bias.data == nullptr || p.bias.col_stride == 1 || p.bias.col_stride == 0);
  if (!across) return finish_elements(p, i0, j0, rows, cols, sums, ld);
  switch (p.d.dtype) {
    case DType::kF16:
      return finish_rows<DType::kF16>(p, i0, j0, rows, cols, sums, ld);
    case DType::kBF16:
      return finish_rows<DType::kBF16>(p, i0, j0, rows, cols, sums, ld);
    default:
      return finish_rows<DType::kF32>(p, i0, j0, rows, cols, sums, ld);
  }
}

constexpr Kernels kAvx2Kernels = {
    .isa = Isa::kAvx2,
    .blocking = kSizes,
    .micro = {{micro_avx2<1, 1>, micro_avx2<1, 1>, micro_avx2<1, 2>},
              {micro_avx2<2, 1>, micro_avx2<2, 1>, micro_avx2<2, 2>},
              {micro_avx2<3, 1>, micro_avx2<3, 1>, micro_avx2<3, 2>},
              {micro_avx2<4, 1>, micro_avx2<4, 1>, micro_avx2<4, 2>},
              {micro_avx2<5, 1>, micro_avx2<5, 1>, micro_avx2<5, 2>},
              {micro_avx2<6, 1>, micro_avx2<6, 1>, micro_avx2<6, 2>}},
    .packed = {{packed_avx2<1, 1>, packed_avx2<1, 1>, packed_avx2<1, 2>},
               {packed_avx2<2, 1>, packed_avx2<2, 1>, packed_avx2<2, 2>},
               {packed_avx2<3, 1>, packed_avx2<3, 1>, packed_avx2<3, 2>},
               {packed_avx2<4, 1>, packed_avx2<4, 1>, packed_avx2<4, 2>},
               {packed_avx2<5, 1>, packed_avx2<5, 1>, packed_avx2<5, 2>},
               {packed_avx2<6, 1>, packed_avx2<6, 1>, packed_avx2<6, 2>}},
    .masks_columns = false,
    .pack = pack_avx2,
    .finish = finish_avx2,
    .dot_rows = 32,
    .dot_rows_from_memory = 32,
    .dot_rows_unaligned = 12,
    .add_rows_rows = 4,
    .dot_columns = dot_columns_avx2,
    .add_rows = add_rows_avx2,
};

}  // namespace xgemm::cpu::dense
