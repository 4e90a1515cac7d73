// Copies of operands that a kernel cannot read as they lie: what is copied, where to, and what the
// problem looks like afterwards. Nothing here needs the CUDA toolkit.
#pragma once

#include "common/gemm_problem.h"
#include "common/math.h"

namespace xgemm::cuda::gemm::align {

inline constexpr int kMaxCopies = 2;  // A and B

// What is contiguous in an operand's copy; kNone: the operand is read as it lies.
enum class Order : uint8_t { kNone, kAlongK, kAcrossK };

// What a choice says of copies. It is remembered for problems that differ in their pointers, so it
// holds none: read_copies makes the copies of the problem at hand from it.
struct Copies {
  Order a = Order::kNone, b = Order::kNone;
  int64_t bytes = 0;  // at the workspace's beginning: A's copy, then B's; the kernel has the rest

  bool any() const { return a != Order::kNone || b != Order::kNone; }
};

// A batch of [outer, inner] matrices. In the copy the rows of `inner` elements lie contiguous,
// `leading_dimension` elements apart, and the matrices one behind the other; what is between the
// rows is not written.
struct AlignedCopy {
  const void* src = nullptr;
  void* dst = nullptr;  // aligned to 16 bytes
  int64_t outer = 0, inner = 0;
  int64_t outer_stride = 0, inner_stride = 0;  // of src, in elements
  int64_t leading_dimension = 0;               // of dst, in elements: a multiple of 16 bytes
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
  int64_t bytes(DType dtype) const {
    return round_up<int64_t>(matrices() * outer * leading_dimension * element_size(dtype), 256);
  }
};

// Whether an operand of so many rows (or columns, of B) is the one with few of them.
bool is_skinny_side(const GemmProblem& problem, int64_t extent);

// The order of A's and B's copies for TMA, of 16-bit types. Few rows (or columns) have K along
// them: a kernel that streams the other operand then takes whole lines, and no more of them than
// there are. Else a dimension that is contiguous stays so, or the one of the smaller stride becomes
// it.
Order order_of_a(const GemmProblem& problem);
Order order_of_b(const GemmProblem& problem);

AlignedCopy copy_of(const GemmProblem& problem, bool of_a, Order order);

struct CopyList {
  AlignedCopy copies[kMaxCopies];
  int count = 0;
  int64_t bytes = 0;  // of all
};
// Makes a problem read its copies in `workspace`, and lists them. Batch dimensions that lie behind
// one another then are merged.
CopyList read_copies(GemmProblem* problem, const Copies& plan, void* workspace);

}  // namespace xgemm::cuda::gemm::align
