// The AVX-512 table: the register tile of 14 rows times 2 vectors, with masked columns.
#include "cpu/sgemm/kernels_avx512.h"

#include <utility>

#include "cpu/isa/avx512.h"
#include "cpu/sgemm/kernels_avx2.h"
#include "cpu/sgemm/microkernel_avx512.h"

namespace xgemm::cpu::dense {
namespace {

constexpr Blocking kSizes = blocking_of(Isa::kAvx512);
static_assert(kSizes.mr == 14 && kSizes.nr == 32, "micro_avx512 below is 14 rows of 2 vectors");

// The last vector is masked: no column from `cols` on is read or written.
template <int kRows, typename Columns>
XGEMM_TARGET_AVX512 void micro_avx512(int64_t kc, const float* a, int64_t a_row, int64_t a_col,
                                      const float* b, int64_t ldb, float* out, int64_t ldo,
                                      bool accumulate, int64_t cols) {
  using Vec = typename Columns::Vec;
  constexpr int kVectors = Columns::kVectors;
  // Rows of A by threes from one pointer: an address for each of 14 would not fit the registers.
  constexpr int kGroup = 3, kGroups = (kRows + kGroup - 1) / kGroup;
  const float* groups[kGroups];
  for (int g = 0; g < kGroups; ++g) groups[g] = a + g * kGroup * a_row;
  const auto last = last_lanes<Columns>(cols);
  Vec sums[kRows][kVectors];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(out + i * ldo), _MM_HINT_T0);
    if (kVectors == 2) {
      _mm_prefetch(reinterpret_cast<const char*>(out + i * ldo + 16), _MM_HINT_T0);
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Columns::zero();
  }
#pragma GCC unroll 2
  for (int64_t p = 0; p < kc; ++p) {
    Vec columns[kVectors];
    if (kVectors == 2) columns[0] = Columns::load(b);
    columns[kVectors - 1] = Columns::load(last, b + Columns::kLanes * (kVectors - 1));
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
      const Vec factor = Columns::splat(groups[i / kGroup] + i % kGroup * a_row);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = Columns::multiply_add(factor, columns[v], sums[i][v]);
      }
    }
#pragma GCC unroll 5
    for (int g = 0; g < kGroups; ++g) {
      groups[g] += a_col;
      asm("" : "+r"(groups[g]));  // or gcc derives all from one of them again
    }
    b += ldb;
  }
  store_tile<kRows, Columns>(sums, out, ldo, accumulate, last);
}

// As Finish. A tile of a D whose columns are contiguous is finished in the order of its rows, and
// then transposed.
XGEMM_TARGET_AVX512 void finish_avx512(const Product& p, int64_t i0, int64_t j0, int64_t rows,
                                       int64_t cols, const float* sums, int64_t ld) {
  if (p.d.dtype != DType::kF32 || p.d.row_stride != 1 || p.d.col_stride == 1 || p.beta != 0.0f ||
      rows > kMaxRows || cols > kMaxPanelWidth) {
    return finish_avx2(p, i0, j0, rows, cols, sums, ld);
  }
  alignas(64) float tile[kMaxRows * kMaxPanelWidth];
  if (p.has_epilogue()) {
    Product part = p;
    part.d = {tile, DType::kF32, kMaxPanelWidth, 1};
    if (p.bias.data != nullptr) part.bias.data = at(p.bias, i0, j0);
    finish_avx2(part, 0, 0, rows, cols, sums, ld);
    sums = tile;
    ld = kMaxPanelWidth;
  }
  const __mmask16 kept = avx512::first_lanes(rows);
  for (int64_t j = 0; j < cols; j += 16) {
    const __mmask16 some = avx512::first_lanes(cols - j);
    __m512 block[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      block[r] = r < rows ? _mm512_maskz_loadu_ps(some, sums + r * ld + j) : _mm512_setzero_ps();
    }
    avx512::transpose16(block);
#pragma GCC unroll 16
    for (int c = 0; c < 16; ++c) {
      if (j + c < cols) _mm512_mask_storeu_ps(at(p.d, i0, j0 + j + c), kept, block[c]);
    }
  }
}

// Row kRows - 1 of the table.
template <int kRows>
constexpr void set_row(Kernels& table) {
  const int i = kRows - 1;
  table.micro[i][0] = micro_avx512<kRows, Columns8>;
  table.micro[i][1] = micro_avx512<kRows, Columns16<1>>;
  table.micro[i][2] = micro_avx512<kRows, Columns16<2>>;
  table.packed[i][0] = packed_avx512<kRows, Columns8>;
  table.packed[i][1] = packed_avx512<kRows, Columns16<1>>;
  table.packed[i][2] = packed_avx512<kRows, Columns16<2>>;
}

template <int... kRows>
constexpr Kernels with_rows(Kernels table, std::integer_sequence<int, kRows...>) {
  (set_row<kRows + 1>(table), ...);
  return table;
}

constexpr Kernels kOthers = {
    .isa = Isa::kAvx512,
    .blocking = kSizes,
    .micro = {},
    .packed = {},
    .masks_columns = true,
    .pack = pack_avx512,
    .finish = finish_avx512,
    .dot_rows = 48,
    .dot_rows_from_memory = 32,
    .dot_rows_unaligned = 28,
    .add_rows_rows = 4,
    .dot_columns = dot_columns_avx512,
    .add_rows = add_rows_avx512,
};

}  // namespace

constexpr Kernels kAvx512Kernels = with_rows(kOthers, std::make_integer_sequence<int, kMaxRows>());

}  // namespace xgemm::cpu::dense
