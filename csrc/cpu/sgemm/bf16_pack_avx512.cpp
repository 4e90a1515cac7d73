// Packing of bf16 into tiles (bf16.h). A tile is 16 vectors: of rows where the operand lies along
// k, of pairs of k where it lies along its extent; a transposition makes one of the other.
#include "cpu/isa/avx512.h"
#include "cpu/sgemm/bf16.h"

namespace xgemm::cpu::dense {
namespace {

// The first `count` of 32 elements, none where count is negative.
XGEMM_INLINE_AVX512 __mmask32 first_elements(int64_t count) {
  if (count >= 32) return ~__mmask32{0};
  return count <= 0 ? 0 : (__mmask32{1} << count) - 1;
}

// x(i, p) at x + i * stride + p.
XGEMM_INLINE_AVX512 void load_along_k(const uint16_t* x, int64_t stride, int64_t extent, int64_t k,
                                      __m512i tile[16]) {
  const __mmask32 mask = first_elements(k);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    tile[i] = i < extent ? _mm512_maskz_loadu_epi16(mask, x + i * stride) : _mm512_setzero_si512();
  }
}

// x(i, p) at x + i + p * stride.
XGEMM_INLINE_AVX512 void load_along_extent(const uint16_t* x, int64_t stride, int64_t extent,
                                           int64_t k, __m512i tile[16]) {
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const auto mask = static_cast<__mmask16>(first_elements(extent));
#pragma GCC unroll 16
  for (int q = 0; q < 16; ++q) {
    const uint16_t* from = x + 2 * q * stride;
    const __m256i even = 2 * q < k ? _mm256_maskz_loadu_epi16(mask, from) : _mm256_setzero_si256();
    const __m256i odd =
        2 * q + 1 < k ? _mm256_maskz_loadu_epi16(mask, from + stride) : _mm256_setzero_si256();
    const __m512i both = _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(even), odd, 1);
    tile[q] = _mm512_permutexvar_epi16(interleave, both);
  }
}

// Any strides: by element.
void load_any(const ConstMatrix& x, int64_t i0, int64_t p0, int64_t extent, int64_t k,
              uint16_t* tile) {
  std::fill(tile, tile + kTileElements, uint16_t{0});
  for (int64_t i = 0; i < extent; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      tile[i * kTileK + p] = *static_cast<const uint16_t*>(at(x, i0 + i, p0 + p));
    }
  }
}

// Magnitudes less 1, so that 0 is the largest.
XGEMM_INLINE_AVX512 __m512i lowest_of(const __m512i tile[16], __m512i lowest) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff), one = _mm512_set1_epi16(1);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const __m512i less = _mm512_sub_epi16(_mm512_and_si512(tile[i], magnitude), one);
    lowest = _mm512_min_epu16(lowest, less);
  }
  return lowest;
}

XGEMM_TARGET_AVX512 Lowest lowest_exponent(__m512i lowest) {
  const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(lowest),
                                        _mm512_maskz_extracti64x4_epi64(0xff, lowest, 1));
  const __m128i quarter =
      _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const int bits = _mm_extract_epi16(_mm_minpos_epu16(quarter), 0) + 1;
  if (bits > 0xffff) return {Lowest::kNone};
  return {bits < 0x80 ? Lowest::kSubnormal : bits >> 7};
}

enum class Along { kK, kExtent, kNeither };

template <Along kAlong, bool kTranspose>
XGEMM_TARGET_AVX512 void pack_panels(const ConstMatrix& x, int64_t extent, int64_t k, uint16_t* out,
                                     Lowest* lowest) {
  // So many panels side by side read 256 contiguous bytes of an operand that lies along its extent.
  constexpr int kSide = kAlong == Along::kExtent ? 8 : 1;
  const auto* data = static_cast<const uint16_t*>(x.data);
  const int64_t panels = (extent + kTileExtent - 1) / kTileExtent;
  const int64_t steps = (k + kTileK - 1) / kTileK;
  for (int64_t first = 0; first < panels; first += kSide) {
    const int side = static_cast<int>(std::min<int64_t>(kSide, panels - first));
    __m512i low[kSide];
    for (int s = 0; s < side; ++s) low[s] = _mm512_set1_epi16(-1);
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t p = step * kTileK, depth = std::min(kTileK, k - p);
      for (int s = 0; s < side; ++s) {
        const int64_t i = (first + s) * kTileExtent, rows = std::min(kTileExtent, extent - i);
        __m512i tile[16];
        if constexpr (kAlong == Along::kK) {
          load_along_k(data + i * x.row_stride + p, x.row_stride, rows, depth, tile);
        } else if constexpr (kAlong == Along::kExtent) {
          load_along_extent(data + i + p * x.col_stride, x.col_stride, rows, depth, tile);
        } else {
          alignas(64) uint16_t gathered[kTileElements];
          load_any(x, i, p, rows, depth, gathered);
          load_along_k(gathered, kTileK, kTileExtent, kTileK, tile);
        }
        low[s] = lowest_of(tile, low[s]);
        if constexpr (kTranspose) avx512::transpose16(reinterpret_cast<__m512*>(tile));
        uint16_t* to = out + ((first + s) * steps + step) * kTileElements;
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) _mm512_storeu_si512(to + r * 32, tile[r]);
      }
    }
    for (int s = 0; s < side; ++s) lowest[first + s].add(lowest_exponent(low[s]));
  }
}

}  // namespace

void pack_bf16_avx512(const ConstMatrix& x, int64_t extent, int64_t k, bool pairs, uint16_t* out,
                      Lowest* lowest) {
  if (x.col_stride == 1) {
    return pairs ? pack_panels<Along::kK, true>(x, extent, k, out, lowest)
                 : pack_panels<Along::kK, false>(x, extent, k, out, lowest);
  }
  if (x.row_stride == 1) {
    return pairs ? pack_panels<Along::kExtent, false>(x, extent, k, out, lowest)
                 : pack_panels<Along::kExtent, true>(x, extent, k, out, lowest);
  }
  return pairs ? pack_panels<Along::kNeither, true>(x, extent, k, out, lowest)
               : pack_panels<Along::kNeither, false>(x, extent, k, out, lowest);
}

}  // namespace xgemm::cpu::dense
