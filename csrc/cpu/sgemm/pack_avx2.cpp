// Packing with AVX2: fp16 and bf16 become fp32 on the way, rows that lie along k are transposed in
// blocks of 8x8.
#include <algorithm>

#include "cpu/isa/avx2.h"
#include "cpu/sgemm/kernels_avx2.h"
#include "cpu/sgemm/pack.h"

namespace xgemm::cpu::dense {
namespace {

using avx2::Element;
using avx2::load8;
using avx2::load_some;

XGEMM_INLINE_AVX2 void store_first(float* out, __m256 x, int64_t count) {
  if (count >= 8) {
    _mm256_storeu_ps(out, x);
    return;
  }
  __m128 part = _mm256_castps256_ps128(x);
  if (count & 4) {
    _mm_storeu_ps(out, part);
    part = _mm256_extractf128_ps(x, 1);
    out += 4;
  }
  if (count & 2) {
    _mm_storel_pi(reinterpret_cast<__m64*>(out), part);
    part = _mm_movehl_ps(part, part);
    out += 2;
  }
  if (count & 1) _mm_store_ss(out, part);
}

// in[r][c] -> out[c][r]
XGEMM_INLINE_AVX2 void transpose8(const __m256 in[8], __m256 out[8]) {
  __m256 pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(in[i], in[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(in[i], in[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    out[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

// A panel of rows that lie side by side: x(i, p) at x + i + p * stride.
template <DType kType>
XGEMM_TARGET_AVX2 void copy_panel(const typename Element<kType>::Type* x, int64_t stride,
                                  int64_t rows, int64_t k, int64_t width, float* out) {
  if (rows == 16 && width == 16) {
    for (int64_t p = 0; p < k; ++p, x += stride, out += 16) {
      _mm256_storeu_ps(out, load8<kType>(x));
      _mm256_storeu_ps(out + 8, load8<kType>(x + 8));
    }
    return;
  }
  for (int64_t p = 0; p < k; ++p, x += stride, out += width) {
    for (int64_t i = 0; i < width; i += 8) {
      const int64_t count = std::min<int64_t>(8, rows - i);
      const __m256 values = count >= 8   ? load8<kType>(x + i)
                            : count <= 0 ? _mm256_setzero_ps()
                                         : load_some<kType>(x + i, count);
      store_first(out + i, values, width - i);
    }
  }
}

// A panel of rows that lie along k: x(i, p) at x + i * stride + p.
template <DType kType>
XGEMM_TARGET_AVX2 void transpose_panel(const typename Element<kType>::Type* x, int64_t stride,
                                       int64_t rows, int64_t k, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += 8) {
    const int64_t count = std::min<int64_t>(8, rows - i), kept = width - i;
    for (int64_t p = 0; p < k; p += 8) {
      const int64_t steps = std::min<int64_t>(8, k - p);
      __m256 in[8], turned[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) {
        const auto* from = x + (i + r) * stride + p;
        in[r] = r >= count   ? _mm256_setzero_ps()
                : steps == 8 ? load8<kType>(from)
                             : load_some<kType>(from, steps);
      }
      transpose8(in, turned);
      float* to = out + p * width + i;
      if (steps == 8 && kept >= 8) {
#pragma GCC unroll 8
        for (int q = 0; q < 8; ++q) _mm256_storeu_ps(to + q * width, turned[q]);
      } else {
        alignas(32) float block[8][8];
#pragma GCC unroll 8
        for (int q = 0; q < 8; ++q) _mm256_store_ps(block[q], turned[q]);
        for (int q = 0; q < steps; ++q) {
          store_first(to + q * width, _mm256_load_ps(block[q]), kept);
        }
      }
    }
  }
}

template <DType kType>
XGEMM_TARGET_AVX2 void convert_row(const typename Element<kType>::Type* x, int64_t k, float* out) {
  int64_t p = 0;
  for (; p + 8 <= k; p += 8) _mm256_storeu_ps(out + p, load8<kType>(x + p));
  if (p < k) store_first(out + p, load_some<kType>(x + p, k - p), k - p);
}

template <DType kType>
void pack(const ConstMatrix& x, int64_t extent, int64_t k, int64_t width, float* out) {
  const auto* data = static_cast<const typename Element<kType>::Type*>(x.data);
  for (int64_t i = 0; i < extent; i += width, out += width * k) {
    const int64_t rows = std::min(width, extent - i);
    const auto* panel = data + i * x.row_stride;
    if (width == 1 && x.col_stride == 1) {
      convert_row<kType>(panel, k, out);
    } else if (x.col_stride == 1) {
      transpose_panel<kType>(panel, x.row_stride, rows, k, width, out);
    } else if (x.row_stride == 1) {
      copy_panel<kType>(panel, x.col_stride, rows, k, width, out);
    } else {
      pack_any({panel, kType, x.row_stride, x.col_stride}, rows, k, width, out);
    }
  }
}

}  // namespace

void pack_avx2(const ConstMatrix& x, int64_t extent, int64_t k, int64_t width, float* out) {
  switch (x.dtype) {
    case DType::kF16:
      return pack<DType::kF16>(x, extent, k, width, out);
    case DType::kBF16:
      return pack<DType::kBF16>(x, extent, k, width, out);
    default:
      return pack<DType::kF32>(x, extent, k, width, out);
  }
}

}  // namespace xgemm::cpu::dense
