// Blocks of D from packed bf16 by AVX-512: dot products of pairs, or fp32 FMAs; and their end.
#include <cstring>

#include "cpu/isa/avx512.h"
#include "cpu/isa/convert.h"
#include "cpu/sgemm/bf16.h"
#include "cpu/sgemm/kernels_avx2.h"

namespace xgemm::cpu::dense {
namespace {

// 8 rows by kCols vectors: 16 sums hide the latency, and a row's pair of k is one broadcast.
constexpr int kRows = 8;

template <bool kExact, int kCols>
XGEMM_TARGET_BF16 void multiply_rows(const Bf16Block& block, const uint16_t* a, float* sums) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  __m512 acc[kRows][kCols];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int c = 0; c < kCols; ++c) {
      acc[i][c] = block.accumulate ? _mm512_loadu_ps(sums + i * kBlockExtent + 16 * c)
                                   : _mm512_setzero_ps();
    }
  }
  const uint16_t* b = block.b;
  for (int64_t step = 0; step < block.steps; ++step, a += kTileElements) {
    const uint16_t* pairs = a;
    for (int q = 0; q < 16; ++q, pairs += 2, b += 2 * kTileExtent) {
      __m512i columns[kCols];
#pragma GCC unroll 2
      for (int c = 0; c < kCols; ++c) columns[c] = _mm512_loadu_si512(b + c * block.b_next);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        int pair;
        std::memcpy(&pair, pairs + i * kTileK, sizeof pair);
        const __m512i row = _mm512_set1_epi32(pair);
#pragma GCC unroll 2
        for (int c = 0; c < kCols; ++c) {
          if constexpr (kExact) {
            acc[i][c] =
                _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(row, 16)),
                                _mm512_castsi512_ps(_mm512_slli_epi32(columns[c], 16)), acc[i][c]);
            acc[i][c] =
                _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(row, high)),
                                _mm512_castsi512_ps(_mm512_and_si512(columns[c], high)), acc[i][c]);
          } else {
            acc[i][c] = _mm512_dpbf16_ps(acc[i][c], reinterpret_cast<__m512bh>(row),
                                         reinterpret_cast<__m512bh>(columns[c]));
          }
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int c = 0; c < kCols; ++c) {
      _mm512_storeu_ps(sums + i * kBlockExtent + 16 * c, acc[i][c]);
    }
  }
}

template <bool kExact>
void multiply_block(const Bf16Block& block) {
  const auto rows = block.col_tiles == 2 ? multiply_rows<kExact, 2> : multiply_rows<kExact, 1>;
  for (int i = 0; i < block.row_tiles * kTileExtent; i += kRows) {
    const uint16_t* panel = block.a + i / kTileExtent * block.a_next;
    rows(block, panel + i % kTileExtent * kTileK, block.sums + i * kBlockExtent);
  }
}

void nothing() {}

// The first `count` of 32 elements.
XGEMM_INLINE_AVX512 __mmask32 first_elements(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
}

// 32 sums as bf16, rounded to nearest even. The instruction would flush subnormals.
XGEMM_TARGET_BF16 inline __m512i round_bf16(__m512 low, __m512 high) {
  constexpr int kSubnormal = 0x20;
  const int subnormal =
      _mm512_fpclass_ps_mask(low, kSubnormal) | _mm512_fpclass_ps_mask(high, kSubnormal);
  if (__builtin_expect(subnormal == 0, 1)) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  }
  alignas(64) float values[32];
  alignas(64) uint16_t bits[32];
  _mm512_store_ps(values, low);
  _mm512_store_ps(values + 16, high);
  for (int i = 0; i < 32; ++i) bits[i] = float_to_bf16(values[i]);
  return _mm512_load_si512(bits);
}

// Up to 32 columns of D = activation(alpha sums + bias); a bias that is not there is -0.
XGEMM_TARGET_BF16 void finish_columns(const Product& p, int64_t i0, int64_t j, int64_t rows,
                                      int64_t cols, const float* sums, int64_t ld) {
  const __mmask32 mask = first_elements(cols);
  const __mmask16 low = static_cast<__mmask16>(mask), high = static_cast<__mmask16>(mask >> 16);
  const __m512 alpha = _mm512_set1_ps(p.alpha);
  const bool relu = p.activation == Activation::kRelu;
  const bool bias_down = p.bias.data != nullptr && p.bias.col_stride != 1;
  __m512 bias_low = _mm512_set1_ps(-0.0f), bias_high = bias_low;
  if (p.bias.data != nullptr && !bias_down) {
    const __m512i bits = _mm512_maskz_loadu_epi16(mask, at(p.bias, i0, j));
    bias_low = avx512::widen<DType::kBF16>(_mm512_castsi512_si256(bits));
    bias_high = avx512::widen<DType::kBF16>(_mm512_extracti64x4_epi64(bits, 1));
  }
  auto* out = static_cast<uint16_t*>(at(p.d, i0, j));
  for (int64_t i = 0; i < rows; ++i, sums += ld, out += p.d.row_stride) {
    if (bias_down) {
      bias_low = bias_high = _mm512_set1_ps(load_float(at(p.bias, i0 + i, j), DType::kBF16));
    }
    __m512 x = _mm512_fmadd_ps(alpha, _mm512_maskz_loadu_ps(low, sums), bias_low);
    __m512 y = _mm512_fmadd_ps(alpha, _mm512_maskz_loadu_ps(high, sums + 16), bias_high);
    if (relu) {  // the second operand where x is NaN
      x = _mm512_max_ps(_mm512_setzero_ps(), x);
      y = _mm512_max_ps(_mm512_setzero_ps(), y);
    }
    _mm512_mask_storeu_epi16(out, mask, round_bf16(x, y));
  }
}

XGEMM_TARGET_BF16 inline void transpose_tile(const float* from, float* to) {
  __m512 x[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i] = _mm512_loadu_ps(from + i * kBlockExtent);
  avx512::transpose16(x);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_storeu_ps(to + i * kBlockExtent, x[i]);
}

}  // namespace

void multiply_exact_avx512(const Bf16Block& block) { multiply_block<true>(block); }

XGEMM_TARGET_BF16 void transpose_block_avx512(const float* sums, float* out) {
  for (int64_t i = 0; i < kBlockExtent; i += kTileExtent) {
    for (int64_t j = 0; j < kBlockExtent; j += kTileExtent) {
      transpose_tile(sums + i * kBlockExtent + j, out + j * kBlockExtent + i);
    }
  }
}

void finish_bf16_avx512(const Product& p, int64_t i0, int64_t j0, int64_t rows, int64_t cols,
                        const float* sums, int64_t ld) {
  const bool plain = p.d.dtype == DType::kBF16 && p.d.col_stride == 1 && p.beta == 0.0f &&
                     (p.activation == Activation::kNone || p.activation == Activation::kRelu) &&
                     (p.bias.data == nullptr || p.bias.col_stride == 1 || p.bias.col_stride == 0);
  if (!plain) return finish_avx2(p, i0, j0, rows, cols, sums, ld);
  for (int64_t j = 0; j < cols; j += 32) {
    finish_columns(p, i0, j0 + j, rows, std::min<int64_t>(32, cols - j), sums + j, ld);
  }
}

constexpr Bf16Kernels kAvx512Bf16Kernels = {.isa = Isa::kAvx512Bf16,
                                            .least_extent = 10,
                                            .apart_extent = 128,
                                            .begin = nothing,
                                            .end = nothing,
                                            .multiply = multiply_block<false>};

}  // namespace xgemm::cpu::dense
