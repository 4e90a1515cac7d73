// Ladder cpu, rung 4: an AVX2 microkernel behind the arguments of BLAS.
//
// Source:    a published walk from three loops to oneDNN's speed, on one core of a Xeon 8260Y.
// Changed:   the 16 x 6 tile is 12 vector registers, by intrinsics; C is column-major, as in BLAS.
// Published: 35.4 40.4 65.8 67.7 69.1 GFLOP/s at 64, 128, 256, 512, 1024 cubed, peak 80
//            (oneDNN: 33.0 62.7 73.2 70.1 79.7).
//
// A CPU with AVX2 has 16 vector registers. 16 rows are two vectors of 8 floats, times 6 columns:
// 12 accumulators, 2 registers for A, and a broadcast element of B in each of the other two. One
// step of k is 2 loads, 6 broadcasts and 12 FMAs. An FMA takes 4 cycles and two start in each, so
// 8 independent sums are the least that keep the units busy; 12 leave some to spare.
//
//   a0 = A[0..7]   a1 = A[8..15]
//   for each column j < 6:  bj = broadcast B[j];  c0j += a0 bj;  c1j += a1 bj
//
// A vector holds 8 rows of one column, so C is stored by columns: column-major, as BLAS has it. A
// row-major product C = A B is the column-major C' = B' A', with the operands swapped.
//
// sgemm() takes what BLAS takes: transposes, leading dimensions, alpha and beta. All four cost
// nothing in the inner loop: packing reads A and B by two strides, and the store applies the
// factors.
//
// Small products pay for what is not an FMA, so: panels are as large as the operands, and nobody
// zeroes them; 16 rows that lie side by side are copied as vectors; B is read where it lies if its
// panels would be used by 512 rows or fewer; a whole tile goes from its registers to C, which
// nobody clears first.
//
// Large ones wait for memory where addresses jump: the next column of C or A is mostly in another
// page, where no hardware looks ahead. So a tile asks for its lines of C before its FMAs, and
// packing for those of A eight columns on.
//
// What is left. Other packing is scalar, and blocks are of fixed sizes. The product's kernel
// (csrc/cpu/sgemm) vectorizes all of it, chooses blocks by the caches, uses AVX-512 where there is
// some, and runs on all cores.
#include <immintrin.h>

#include <algorithm>
#include <memory>

#include "cpu/ladder/cpu/rungs.h"

namespace xgemm::cpu::ladder {
namespace {

constexpr int64_t kTileM = 16, kTileN = 6;      // of C, in registers
constexpr int64_t kBlockM = 64, kBlockK = 256;  // of A, packed
constexpr int64_t kFewRows = 512;               // for which B is not packed
constexpr int64_t kAhead = 8;                   // steps of k that packing asks for ahead

// Beyond the operand, too: nothing is read then.
void prefetch(const float* from) { _mm_prefetch(reinterpret_cast<const char*>(from), _MM_HINT_T0); }

// An operand as packing reads it: element (row, column) lies at data[row * down + column * right].
struct Strided {
  const float* data;
  int64_t down, right;
  Strided at(int64_t row, int64_t column) const {
    return {data + row * down + column * right, down, right};
  }
};

// Where a tile's sums go: rows x columns of it are inside of C.
struct Output {
  float* c;
  int64_t ldc, rows, columns;
  float alpha;
  bool overwrite;  // what C holds is not read
};

// out.c[j][i] = what it was, plus alpha times the sum over p of a[p][i] b(j, p); a: packed. Of
// packed B the strides are constants.
template <bool kPacked>
XGEMM_TARGET_AVX2 void multiply_tile(const float* a, const Strided& b, int64_t depth,
                                     const Output& out) {
#pragma GCC unroll 6
  for (int64_t j = 0; j < kTileN; ++j) prefetch(out.c + j * out.ldc);
  __m256 sums[kTileN][2];
#pragma GCC unroll 6
  for (int64_t j = 0; j < kTileN; ++j) sums[j][0] = sums[j][1] = _mm256_setzero_ps();
  const int64_t down = kPacked ? 1 : b.down, right = kPacked ? kTileN : b.right;
  const float *from = b.data, *upper = from + 3 * down;  // an address may add 0, 1 or 2 times down
  for (int64_t p = 0; p < depth; ++p, a += kTileM, from += right, upper += right) {
    const __m256 a0 = _mm256_loadu_ps(a), a1 = _mm256_loadu_ps(a + 8);
#pragma GCC unroll 6
    for (int64_t j = 0; j < kTileN; ++j) {
      const __m256 factor = _mm256_broadcast_ss((j < 3 ? from : upper) + j % 3 * down);
      sums[j][0] = _mm256_fmadd_ps(a0, factor, sums[j][0]);
      sums[j][1] = _mm256_fmadd_ps(a1, factor, sums[j][1]);
    }
  }
  float* c = out.c;
  const __m256 alpha = _mm256_set1_ps(out.alpha);
  if (out.rows == kTileM && out.columns == kTileN) {
#pragma GCC unroll 6
    for (int64_t j = 0; j < kTileN; ++j, c += out.ldc) {
      for (int64_t half = 0; half < 2; ++half) {
        const __m256 was = out.overwrite ? _mm256_setzero_ps() : _mm256_loadu_ps(c + 8 * half);
        _mm256_storeu_ps(c + 8 * half, _mm256_fmadd_ps(sums[j][half], alpha, was));
      }
    }
    return;
  }
  float tile[kTileN][kTileM];
#pragma GCC unroll 6
  for (int64_t j = 0; j < kTileN; ++j) {
    _mm256_storeu_ps(tile[j], _mm256_mul_ps(sums[j][0], alpha));
    _mm256_storeu_ps(tile[j] + 8, _mm256_mul_ps(sums[j][1], alpha));
  }
  for (int64_t j = 0; j < out.columns; ++j, c += out.ldc) {
    for (int64_t i = 0; i < out.rows; ++i) c[i] = (out.overwrite ? 0.0f : c[i]) + tile[j][i];
  }
}

// kTile rows of A, or columns of B, side by side for each k; zeros beyond the edge.
template <int64_t kTile>
void pack(const Strided& x, int64_t count, int64_t depth, float* panels) {
  for (int64_t first = 0; first < count; first += kTile) {
    const int64_t inside = std::min(kTile, count - first);
    for (int64_t p = 0; p < depth; ++p, panels += kTile) {
      const float* from = x.data + first * x.down + p * x.right;
      if (x.down == 1 && inside == kTile) {
        prefetch(from + kAhead * x.right);
        std::copy_n(from, kTile, panels);
        continue;
      }
      for (int64_t i = 0; i < inside; ++i) panels[i] = from[i * x.down];
      for (int64_t i = inside; i < kTile; ++i) panels[i] = 0.0f;
    }
  }
}

int64_t round_up(int64_t size, int64_t tile) { return (size + tile - 1) / tile * tile; }

}  // namespace

void sgemm(bool transa, bool transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
           int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  const Strided op_a = transa ? Strided{a, lda, 1} : Strided{a, 1, lda};  // [m, k]
  const Strided op_b = transb ? Strided{b, 1, ldb} : Strided{b, ldb, 1};  // [n, k]
  const int64_t most_k = std::min(k, kBlockK), whole = n / kTileN * kTileN;
  const int64_t in_place = m <= kFewRows ? whole : 0;  // columns of B that are not packed
  const auto a_panels =
      std::make_unique_for_overwrite<float[]>(round_up(std::min(m, kBlockM), kTileM) * most_k);
  const auto b_panels =
      std::make_unique_for_overwrite<float[]>(round_up(n - in_place, kTileN) * most_k);
  // As BLAS has it: beta = 0 overwrites C, whatever was there, and the first block of k does.
  for (int64_t j = 0; j < n && (beta != 0 || k == 0); ++j) {
    for (int64_t i = 0; i < m; ++i) c[j * ldc + i] = beta == 0 ? 0.0f : beta * c[j * ldc + i];
  }
  for (int64_t p0 = 0; p0 < k; p0 += kBlockK) {
    const int64_t depth = std::min(kBlockK, k - p0);
    pack<kTileN>(op_b.at(in_place, p0), n - in_place, depth, b_panels.get());
    for (int64_t i0 = 0; i0 < m; i0 += kBlockM) {
      const int64_t block_m = std::min(kBlockM, m - i0);
      pack<kTileM>(op_a.at(i0, p0), block_m, depth, a_panels.get());
      for (int64_t j = 0; j < n; j += kTileN) {
        const Strided columns =
            j < in_place ? op_b.at(j, p0) : Strided{&b_panels[(j - in_place) * depth], 1, kTileN};
        for (int64_t i = 0; i < block_m; i += kTileM) {
          const auto multiply = j < in_place ? multiply_tile<false> : multiply_tile<true>;
          multiply(&a_panels[i * depth], columns, depth,
                   {.c = &c[j * ldc + i0 + i],
                    .ldc = ldc,
                    .rows = std::min(kTileM, block_m - i),
                    .columns = std::min(kTileN, n - j),
                    .alpha = alpha,
                    .overwrite = beta == 0 && p0 == 0});
        }
      }
    }
  }
}

void microkernel(const Product& product) {
  const auto [a, b, c, m, n, k] = product;
  sgemm(false, false, n, m, k, 1.0f, b, n, a, k, 0.0f, c, n);
}

}  // namespace xgemm::cpu::ladder
