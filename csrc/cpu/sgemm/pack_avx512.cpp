// Packing with AVX-512: rows that lie along k are transposed in blocks of 16x16, and masks take the
// place of ends; fp16 and bf16 become fp32 on the way.
#include <algorithm>

#include "cpu/isa/avx512.h"
#include "cpu/sgemm/kernels_avx2.h"
#include "cpu/sgemm/kernels_avx512.h"

namespace xgemm::cpu::dense {
namespace {

using avx2::Element;
using avx512::first_lanes;
using avx512::load16;
using avx512::load_some;
using avx512::transpose16;

template <DType kType>
XGEMM_INLINE_AVX512 __m512 load_any(const typename Element<kType>::Type* x, int64_t count) {
  return count >= 16 ? load16<kType>(x) : load_some<kType>(x, count);
}

// A panel of rows that lie side by side: x(i, p) at x + i + p * stride.
template <DType kType>
XGEMM_TARGET_AVX512 void copy_panel(const typename Element<kType>::Type* x, int64_t stride,
                                    int64_t rows, int64_t k, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += 16) {
    const int64_t count = std::clamp<int64_t>(rows - i, 0, 16);
    const __mmask16 kept = first_lanes(width - i);
    const auto* from = x + i;
    float* to = out + i;
    if (count == 16) {
      for (int64_t p = 0; p < k; ++p, from += stride, to += width) {
        _mm512_storeu_ps(to, load16<kType>(from));
      }
      continue;
    }
    for (int64_t p = 0; p < k; ++p, from += stride, to += width) {
      _mm512_mask_storeu_ps(to, kept, load_some<kType>(from, count));
    }
  }
}

// Whole panels of 32 rows that lie side by side, a few at once: k rows of x are read in long
// pieces, which hardware does not fetch ahead (they are a row apart), and written in as many
// streams.
template <DType kType>
XGEMM_TARGET_AVX512 void copy_panels(const typename Element<kType>::Type* x, int64_t stride,
                                     int64_t panels, int64_t k, float* out) {
  constexpr int64_t kWidth = 32, kAhead = 4;
  for (int64_t p = 0; p < k; ++p, x += stride, out += kWidth) {
    const auto* from = x;
    float* to = out;
    const int64_t ahead = p + kAhead < k ? kAhead * stride : 0;
    for (int64_t i = 0; i < panels; ++i, from += kWidth, to += kWidth * k) {
      _mm_prefetch(reinterpret_cast<const char*>(from + ahead), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(from + ahead + 16), _MM_HINT_T0);
      _mm512_storeu_ps(to, load16<kType>(from));
      _mm512_storeu_ps(to + 16, load16<kType>(from + 16));
    }
  }
}

// A panel of rows that lie along k: x(i, p) at x + i * stride + p.
template <DType kType>
XGEMM_TARGET_AVX512 void transpose_panel(const typename Element<kType>::Type* x, int64_t stride,
                                         int64_t rows, int64_t k, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += 16) {
    const int64_t count = std::clamp<int64_t>(rows - i, 0, 16);
    const __mmask16 kept = first_lanes(width - i);
    for (int64_t p = 0; p < k; p += 16) {
      const int64_t steps = std::min<int64_t>(16, k - p);
      // The same place of the rows after these: they come from farther away than they are turned.
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) {
        _mm_prefetch(reinterpret_cast<const char*>(x + (i + 16 + r) * stride + p), _MM_HINT_T1);
      }
      __m512 block[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) {
        block[r] =
            r < count ? load_any<kType>(x + (i + r) * stride + p, steps) : _mm512_setzero_ps();
      }
      transpose16(block);
      float* to = out + p * width + i;
#pragma GCC unroll 16
      for (int q = 0; q < 16; ++q) {
        if (q < steps) _mm512_mask_storeu_ps(to + q * width, kept, block[q]);
      }
    }
  }
}

template <DType kType>
void pack(const ConstMatrix& x, int64_t extent, int64_t k, int64_t width, float* out) {
  const auto* data = static_cast<const typename Element<kType>::Type*>(x.data);
  if (x.col_stride != 1 && width == 32) {
    constexpr int64_t kPanels = 8;
    const int64_t whole = extent / width;
    for (int64_t i = 0; i < whole; i += kPanels) {
      copy_panels<kType>(data + i * width, x.col_stride, std::min(kPanels, whole - i), k,
                         out + i * width * k);
    }
    data += whole * width;
    out += whole * width * k;
    extent -= whole * width;
  }
  for (int64_t i = 0; i < extent; i += width, out += width * k) {
    const int64_t rows = std::min(width, extent - i);
    const auto* panel = data + i * x.row_stride;
    if (x.col_stride == 1) {
      transpose_panel<kType>(panel, x.row_stride, rows, k, width, out);
    } else {
      copy_panel<kType>(panel, x.col_stride, rows, k, width, out);
    }
  }
}

}  // namespace

void pack_avx512(const ConstMatrix& x, int64_t extent, int64_t k, int64_t width, float* out) {
  // A single row is copied, and what has no unit stride is gathered, as AVX2 does.
  if (width == 1 || (x.col_stride != 1 && x.row_stride != 1)) {
    return pack_avx2(x, extent, k, width, out);
  }
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
