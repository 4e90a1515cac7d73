// Copies of operands that TMA cannot read as they lie: what is copied, where to, and what the
// problem looks like afterwards. Nothing here needs the CUDA toolkit.
#pragma once

#include "common/gemm_problem.h"
#include "common/math.h"

namespace xgemm::cuda::gemm::align {

// A batch of [outer, inner] matrices of a 16-bit type. In the copy the rows of `inner` elements lie
// contiguous, `leading_dimension` elements apart, and the matrices one behind the other; what is
// between the rows is not written.
struct AlignedCopy {
  const void* src = nullptr;
  void* dst = nullptr;  // aligned to 16 bytes
  int64_t outer = 0, inner = 0;
  int64_t outer_stride = 0, inner_stride = 0;  // of src, in elements
  int64_t leading_dimension = 0;               // of dst, in elements: a multiple of 8
  bool inner_is_columns = true;
  // Of src; dimensions that share one matrix have an extent of 1.
  int batch_dims = 0;
  int64_t batch_size[kMaxBatchDims] = {}, batch_stride[kMaxBatchDims] = {};

  int64_t matrices() const {
    int64_t count = 1;
    for (int i = 0; i < batch_dims; ++i) count *= batch_size[i];
    return count;
  }
  // Rounded up, so that another copy may lie behind.
  int64_t bytes() const {
    return round_up<int64_t>(matrices() * outer * leading_dimension * 2, 256);
  }
};

// Whether an operand of so many rows (or columns, of B) is the one with few of them.
bool is_skinny_side(const GemmProblem& problem, int64_t extent);

// The copies of A and B. Few rows (or columns) have K along them: a kernel that streams the other
// operand then takes whole lines, and no more of them than there are. Else a dimension that is
// contiguous stays so, or the one of the smaller stride becomes it.
AlignedCopy copy_of_a(const GemmProblem& problem);
AlignedCopy copy_of_b(const GemmProblem& problem);

// The problem with A and B read from their copies, where one is given (not null). Batch dimensions
// that lie behind one another now are merged.
GemmProblem with_copies(const GemmProblem& problem, const AlignedCopy* a, const AlignedCopy* b);

}  // namespace xgemm::cuda::gemm::align
