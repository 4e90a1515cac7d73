#include "cuda/gemm/tf32/plan.h"

#include "common/math.h"

namespace xgemm::cuda::gemm::tf32 {
namespace {

// A matrix of `extent` contiguous rows, `stride` elements apart.
bool fits_tma(const void* data, int64_t contiguous_stride, int64_t stride, int64_t extent,
              int64_t batch_stride) {
  constexpr int64_t kMaxStride = int64_t{1} << 38;
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || contiguous_stride != 1) return false;
  if (batch_stride < 0 || batch_stride % 4 != 0 || batch_stride >= kMaxStride) return false;
  return extent <= 1 || (stride % 4 == 0 && stride > 0 && stride < kMaxStride);
}

}  // namespace

bool Matrix::fits_along_k() const {
  return fits_tma(data, k_stride, row_stride, rows, batch_stride);
}
bool Matrix::fits_along_rows(int64_t k) const {
  return fits_tma(data, row_stride, k_stride, k, batch_stride);
}

Matrix a_of(const GemmProblem& p) {
  return {p.a.data, p.m, p.a.row_stride, p.a.col_stride, p.batch_dims > 0 ? p.batch[0].a : 0};
}
Matrix b_of(const GemmProblem& p) {
  return {p.b.data, p.n, p.b.col_stride, p.b.row_stride, p.batch_dims > 0 ? p.batch[0].b : 0};
}

bool fits(const GemmProblem& p) {
  constexpr int64_t kMax = INT32_MAX - 1024;  // coordinates, and tiles may reach past the end
  return p.k > 0 && p.m <= kMax && p.n <= kMax && p.k <= kMax && p.batch_dims <= 1 &&
         (p.batch_dims == 0 || p.batch[0].size <= kMax);
}

int64_t batches_of(const GemmProblem& p) { return p.batch_dims > 0 ? p.batch[0].size : 1; }

}  // namespace xgemm::cuda::gemm::tf32
