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
// What is left. Packing is scalar; the tile's edge goes through a buffer; blocks are of fixed
// sizes. The product's kernel (csrc/cpu/sgemm) vectorizes packing, packs nothing for small
// matrices, chooses blocks by the caches, uses AVX-512 where there is some, and runs on all cores.
#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "cpu/ladder/cpu/rungs.h"

namespace xgemm::cpu::ladder {
namespace {

constexpr int64_t kTileM = 16, kTileN = 6;      // of C, in registers
constexpr int64_t kBlockM = 64, kBlockK = 256;  // of A, packed

struct Panels {
  const float* a;  // [kTileM] for each of `depth` k
  const float* b;  // [kTileN] for each k
  int64_t depth;
};

// An operand as packing reads it: element (row, column) lies at data[row * down + column * right].
struct Strided {
  const float* data;
  int64_t down, right;
  Strided at(int64_t row, int64_t column) const {
    return {data + row * down + column * right, down, right};
  }
};

// tile[j][i] = sum over p of a[p][i] b[p][j].
XGEMM_TARGET_AVX2 void multiply_tile(const Panels& panels, float (&tile)[kTileN][kTileM]) {
  __m256 sums[kTileN][2];
#pragma GCC unroll 6
  for (int64_t j = 0; j < kTileN; ++j) sums[j][0] = sums[j][1] = _mm256_setzero_ps();
  const float *a = panels.a, *b = panels.b;
  for (int64_t p = 0; p < panels.depth; ++p, a += kTileM, b += kTileN) {
    const __m256 a0 = _mm256_loadu_ps(a), a1 = _mm256_loadu_ps(a + 8);
#pragma GCC unroll 6
    for (int64_t j = 0; j < kTileN; ++j) {
      const __m256 factor = _mm256_broadcast_ss(b + j);
      sums[j][0] = _mm256_fmadd_ps(a0, factor, sums[j][0]);
      sums[j][1] = _mm256_fmadd_ps(a1, factor, sums[j][1]);
    }
  }
#pragma GCC unroll 6
  for (int64_t j = 0; j < kTileN; ++j) {
    _mm256_storeu_ps(tile[j], sums[j][0]);
    _mm256_storeu_ps(tile[j] + 8, sums[j][1]);
  }
}

// kTile rows of A, or columns of B, side by side for each k; zeros beyond the edge.
template <int64_t kTile>
void pack(const Strided& x, int64_t count, int64_t depth, float* panels) {
  for (int64_t first = 0; first < count; first += kTile) {
    const int64_t inside = std::min(kTile, count - first);
    for (int64_t p = 0; p < depth; ++p, panels += kTile) {
      const float* from = x.data + first * x.down + p * x.right;
      for (int64_t i = 0; i < inside; ++i) panels[i] = from[i * x.down];
      for (int64_t i = inside; i < kTile; ++i) panels[i] = 0.0f;
    }
  }
}

}  // namespace

void sgemm(bool transa, bool transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
           int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  const Strided op_a = transa ? Strided{a, lda, 1} : Strided{a, 1, lda};  // [m, k]
  const Strided op_b = transb ? Strided{b, 1, ldb} : Strided{b, ldb, 1};  // [n, k]
  std::vector<float> a_panels(kBlockM * kBlockK), b_panels((n + kTileN) * kBlockK);
  for (int64_t j = 0; j < n; ++j) {
    // As BLAS has it: beta = 0 overwrites C, whatever was there.
    for (int64_t i = 0; i < m; ++i) c[j * ldc + i] = beta == 0 ? 0.0f : beta * c[j * ldc + i];
  }
  for (int64_t p0 = 0; p0 < k; p0 += kBlockK) {
    const int64_t depth = std::min(kBlockK, k - p0);
    pack<kTileN>(op_b.at(0, p0), n, depth, b_panels.data());
    for (int64_t i0 = 0; i0 < m; i0 += kBlockM) {
      const int64_t block_m = std::min(kBlockM, m - i0);
      pack<kTileM>(op_a.at(i0, p0), block_m, depth, a_panels.data());
      for (int64_t j = 0; j < n; j += kTileN) {
        for (int64_t i = 0; i < block_m; i += kTileM) {
          float tile[kTileN][kTileM];
          multiply_tile({&a_panels[i * depth], &b_panels[j * depth], depth}, tile);
          const int64_t rows = std::min(kTileM, block_m - i), columns = std::min(kTileN, n - j);
          for (int64_t column = 0; column < columns; ++column) {
            float* to = &c[(j + column) * ldc + i0 + i];
            for (int64_t row = 0; row < rows; ++row) to[row] += alpha * tile[column][row];
          }
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
