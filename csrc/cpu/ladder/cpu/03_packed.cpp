// Ladder cpu, rung 3: packed panels, and a tile of C that stays in registers.
//
// Source:    a published walk from three loops to oneDNN's speed, on one core of a Xeon 8260Y.
// Changed:   blocks of A and B are copied into panels; a 16 x 6 tile of C is summed at a time.
// Published: no number for this step alone.
//
// A tile of C is kept over 256 steps of k, so C costs a load and a store once in 256 FMAs instead
// of every time. Each step takes 16 elements of A and 6 of B and makes 96 multiply-adds of them:
// 22 loads for 96 FMAs. This is the outer product that every fast GEMM is made of.
//
// For that the 16 elements must lie side by side, and the 6 as well. So both operands are copied
// first ("packed"), into the order in which the tile reads them:
//
//   A, 64 x 256:  4 panels of 16 rows;     panel[p][i] = A[i0 + i][p0 + p]    64 KB: L2
//   B, 256 x n:   n / 6 panels of 6 columns; panel[p][j] = B[p0 + p][j0 + j]  6 KB a panel: L1
//
// Copying costs O(m k + k n), the product O(m n k). What lies beyond an edge is packed as zeros, so
// the inner loop has no special cases; only the store looks at the edge.
//
// What is wrong with it. The tile is plain C++: whether the 96 sums stay in registers is up to the
// compiler, which has 16 vector registers and is free to spill.
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

// C[rows, columns] += A B, of one tile.
XGEMM_TARGET_AVX2 void add_tile(const Panels& panels, float* c, int64_t ldc, int64_t rows,
                                int64_t columns) {
  float sums[kTileN][kTileM] = {};
  for (int64_t p = 0; p < panels.depth; ++p) {
    for (int64_t j = 0; j < kTileN; ++j) {
      const float factor = panels.b[p * kTileN + j];
#pragma GCC unroll 1  // or GCC unrolls the loop before it would make vectors of it
      for (int64_t i = 0; i < kTileM; ++i) sums[j][i] += panels.a[p * kTileM + i] * factor;
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) c[i * ldc + j] += sums[j][i];
  }
}

void pack_a(const float* a, int64_t lda, int64_t rows, int64_t depth, float* panels) {
  for (int64_t i0 = 0; i0 < rows; i0 += kTileM) {
    for (int64_t p = 0; p < depth; ++p) {
      for (int64_t i = i0; i < i0 + kTileM; ++i) *panels++ = i < rows ? a[i * lda + p] : 0.0f;
    }
  }
}

void pack_b(const float* b, int64_t ldb, int64_t depth, int64_t columns, float* panels) {
  for (int64_t j0 = 0; j0 < columns; j0 += kTileN) {
    for (int64_t p = 0; p < depth; ++p) {
      for (int64_t j = j0; j < j0 + kTileN; ++j) *panels++ = j < columns ? b[p * ldb + j] : 0.0f;
    }
  }
}

}  // namespace

void packed(const Product& product) {
  const auto [a, b, c, m, n, k] = product;
  std::vector<float> a_panels(kBlockM * kBlockK), b_panels((n + kTileN) * kBlockK);
  std::fill(c, c + m * n, 0.0f);
  for (int64_t p0 = 0; p0 < k; p0 += kBlockK) {
    const int64_t depth = std::min(kBlockK, k - p0);
    pack_b(b + p0 * n, n, depth, n, b_panels.data());
    for (int64_t i0 = 0; i0 < m; i0 += kBlockM) {
      const int64_t block_m = std::min(kBlockM, m - i0);
      pack_a(a + i0 * k + p0, k, block_m, depth, a_panels.data());
      for (int64_t j = 0; j < n; j += kTileN) {
        for (int64_t i = 0; i < block_m; i += kTileM) {
          const Panels panels{&a_panels[i * depth], &b_panels[j * depth], depth};
          add_tile(panels, &c[(i0 + i) * n + j], n, std::min(kTileM, block_m - i),
                   std::min(kTileN, n - j));
        }
      }
    }
  }
}

}  // namespace xgemm::cpu::ladder
