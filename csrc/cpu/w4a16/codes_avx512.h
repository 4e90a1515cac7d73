// Codes, scales and zero points of the packed layout, by AVX-512.
#pragma once

#include <immintrin.h>

#include "cpu/isa/avx512.h"
#include "cpu/w4a16/dequant.h"

namespace xgemm::cpu::w4a16 {

// The hardware's prefetcher stops at the end of a 4 KiB page. (Xeon, one row, weights that come
// from memory in pages of 2 MiB: 4096 bytes take 1.11 of the time with one thread, 1.02 to 1.08
// with two, 1280 bytes 1.0 to 1.25.)
inline constexpr int64_t kPrefetchBytes = 3072;

XGEMM_INLINE_AVX512 void fetch_half(const uint8_t* codes) {
#pragma GCC unroll 8
  for (int gid = 0; gid < 8; ++gid) {
    _mm_prefetch(codes + gid * 64 + kPrefetchBytes, _MM_HINT_T0);
  }
}

// Half a strip with its lanes in order: words[j][0 or 1: gids 0 .. 3 or 4 .. 7], a 128-bit lane for
// each tig.
XGEMM_INLINE_AVX512 void load_half(const uint8_t* codes, __m512i words[4][2]) {
  __m512i rows[8];
#pragma GCC unroll 8
  for (int gid = 0; gid < 8; ++gid) rows[gid] = _mm512_loadu_si512(codes + gid * 64);
#pragma GCC unroll 2
  for (int upper = 0; upper < 2; ++upper) {
    const __m512i* r = rows + 4 * upper;
    const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpacklo_epi32(r[2], r[3]);
    const __m512i c = _mm512_unpackhi_epi32(r[0], r[1]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    words[0][upper] = _mm512_unpacklo_epi64(a, b);
    words[1][upper] = _mm512_unpackhi_epi64(a, b);
    words[2][upper] = _mm512_unpacklo_epi64(c, d);
    words[3][upper] = _mm512_unpackhi_epi64(c, d);
  }
}

// 16 scales (fp16 or bf16) or, with bf16 false, zero points.
XGEMM_INLINE_AVX512 __m512 load_16(const uint8_t* bytes, bool bf16) {
  const auto* bits = reinterpret_cast<const uint16_t*>(bytes);
  return bf16 ? avx512::load16<DType::kBF16>(bits) : avx512::load16<DType::kF16>(bits);
}

}  // namespace xgemm::cpu::w4a16
