// The AVX-512 table: the register tile of 14 rows times 2 vectors, with masked columns.
#include "cpu/sgemm/kernels_avx512.h"

#include "cpu/isa/avx512.h"
#include "cpu/sgemm/kernels_avx2.h"
#include "cpu/sgemm/microkernel_avx512.h"

namespace xgemm::cpu::dense {
namespace {

constexpr Blocking kSizes = blocking_of(Isa::kAvx512);
static_assert(kSizes.mr == 14 && kSizes.nr == 32, "micro_avx512 below is 14 rows of 2 vectors");

// kStepA, kStepB: a_col and ldb where they are known (packed panels, then a_row is 1), else 0.
// The last vector is masked: no column from `cols` on is read or written.
template <int kRows, int kVectors, int kStepA = 0, int kStepB = 0>
XGEMM_TARGET_AVX512 void micro_avx512(int64_t kc, const float* a, int64_t a_row, int64_t a_col,
                                      const float* b, int64_t ldb, float* out, int64_t ldo,
                                      bool accumulate, int64_t cols) {
  const int64_t step_a = kStepA != 0 ? kStepA : a_col, step_b = kStepB != 0 ? kStepB : ldb;
  // Rows of A by threes from one pointer: an address for each of 14 would not fit the registers.
  constexpr int kGroup = kStepA != 0 ? kRows : 3, kGroups = (kRows + kGroup - 1) / kGroup;
  const int64_t row = kStepA != 0 ? 1 : a_row;
  const float* groups[kGroups];
  for (int g = 0; g < kGroups; ++g) groups[g] = a + g * kGroup * row;
  const __mmask16 last = avx512::first_lanes(cols - 16 * (kVectors - 1));
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(out + i * ldo), _MM_HINT_T0);
    if (kVectors == 2) {
      _mm_prefetch(reinterpret_cast<const char*>(out + i * ldo + 16), _MM_HINT_T0);
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_setzero_ps();
  }
#pragma GCC unroll 2
  for (int64_t p = 0; p < kc; ++p) {
    __m512 columns[kVectors];
    if (kVectors == 2) columns[0] = _mm512_loadu_ps(b);
    columns[kVectors - 1] = _mm512_maskz_loadu_ps(last, b + 16 * (kVectors - 1));
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
      const __m512 factor = _mm512_set1_ps(groups[i / kGroup][i % kGroup * row]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = _mm512_fmadd_ps(factor, columns[v], sums[i][v]);
      }
    }
#pragma GCC unroll 5
    for (int g = 0; g < kGroups; ++g) {
      groups[g] += step_a;
      asm("" : "+r"(groups[g]));  // or gcc derives all from one of them again
    }
    b += step_b;
  }
  store_tile(sums, out, ldo, accumulate, last);
}

constexpr PackedKernel kPacked[kMaxRows][2] = {
    {packed_avx512<1, 1>, packed_avx512<1, 2>},   {packed_avx512<2, 1>, packed_avx512<2, 2>},
    {packed_avx512<3, 1>, packed_avx512<3, 2>},   {packed_avx512<4, 1>, packed_avx512<4, 2>},
    {packed_avx512<5, 1>, packed_avx512<5, 2>},   {packed_avx512<6, 1>, packed_avx512<6, 2>},
    {packed_avx512<7, 1>, packed_avx512<7, 2>},   {packed_avx512<8, 1>, packed_avx512<8, 2>},
    {packed_avx512<9, 1>, packed_avx512<9, 2>},   {packed_avx512<10, 1>, packed_avx512<10, 2>},
    {packed_avx512<11, 1>, packed_avx512<11, 2>}, {packed_avx512<12, 1>, packed_avx512<12, 2>},
    {packed_avx512<13, 1>, packed_avx512<13, 2>}, {packed_avx512<14, 1>, packed_avx512<14, 2>}};

}  // namespace

constexpr Kernels kAvx512Kernels = {
    .isa = Isa::kAvx512,
    .blocking = kSizes,
    .micro = {{micro_avx512<1, 1>, micro_avx512<1, 2>},
              {micro_avx512<2, 1>, micro_avx512<2, 2>},
              {micro_avx512<3, 1>, micro_avx512<3, 2>},
              {micro_avx512<4, 1>, micro_avx512<4, 2>},
              {micro_avx512<5, 1>, micro_avx512<5, 2>},
              {micro_avx512<6, 1>, micro_avx512<6, 2>},
              {micro_avx512<7, 1>, micro_avx512<7, 2>},
              {micro_avx512<8, 1>, micro_avx512<8, 2>},
              {micro_avx512<9, 1>, micro_avx512<9, 2>},
              {micro_avx512<10, 1>, micro_avx512<10, 2>},
              {micro_avx512<11, 1>, micro_avx512<11, 2>},
              {micro_avx512<12, 1>, micro_avx512<12, 2>},
              {micro_avx512<13, 1>, micro_avx512<13, 2>},
              {micro_avx512<14, 1>, micro_avx512<14, 2>}},
    .micro_packed = nullptr,
    .packed = kPacked,
    .masks_columns = true,
    .pack = pack_avx512,
    .finish = finish_avx2,
    .dot_rows = 48,
    .add_rows_rows = 4,
    .dot_columns = dot_columns_avx512,
    .add_rows = add_rows_avx512,
};

}  // namespace xgemm::cpu::dense
