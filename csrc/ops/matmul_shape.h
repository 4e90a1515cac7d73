// The shapes of a product, as torch.matmul reads them, turned into one strided problem.
#pragma once

#include <cstdint>
#include <vector>

#include "common/gemm_problem.h"
#include "ops/checks.h"

namespace xgemm::ops {

// Sizes of a tensor, without an allocation up to 8 dimensions.
class Sizes {
 public:
  void push_back(int64_t size) {
    if (count_ < kMaxInline) {
      inline_[count_] = size;
    } else {
      if (count_ == kMaxInline) allocated_.assign(inline_, inline_ + kMaxInline);
      allocated_.push_back(size);
    }
    ++count_;
  }
  const int64_t* data() const { return count_ > kMaxInline ? allocated_.data() : inline_; }
  int64_t dim() const { return count_; }
  int64_t numel() const {
    int64_t count = 1;
    for (int64_t d = 0; d < count_; ++d) count *= data()[d];
    return count;
  }

 private:
  static constexpr int64_t kMaxInline = 8;
  int64_t inline_[kMaxInline];
  std::vector<int64_t> allocated_;
  int64_t count_ = 0;
};

// op(a) [..., M, K] times op(b) [..., K, N], the leading dimensions broadcast. A 1-D a is a row and
// a 1-D b a column, and that dimension is missing in the result.
class MatmulShape {
 public:
  // Borrows a and b; a ValueError where they do not fit each other.
  MatmulShape(const char* op, const TensorView& a, const TensorView& b, bool transa = false,
              bool transb = false);

  int64_t m() const { return m_; }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  const Sizes& result() const { return result_; }

  // A ValueError unless `view` has the result's shape.
  void require_result(const char* op, const char* name, const TensorView& view) const;

  // Extents, strides and batch of D = A B, with D (and C, where it is given) of the result's shape.
  // Batch dimensions that lie behind one another are merged, and folded into M where B stays.
  // Returns those that a problem has no room for, outermost first: nearly always none.
  std::vector<BatchDim> fill(GemmProblem& problem, const TensorView& d,
                             const TensorView* c = nullptr) const;

 private:
  int64_t batch_dims() const { return result_.dim() - (a_.dim > 1) - (b_.dim > 1); }
  void set_result_strides(const TensorView& view, int64_t& row_stride, int64_t& col_stride) const;
  std::vector<BatchDim> fill_batch(GemmProblem& problem, const TensorView& d,
                                   const TensorView* c) const;

  const TensorView& a_;
  const TensorView& b_;
  bool transa_, transb_;
  int64_t m_ = 1, n_ = 1, k_ = 0;
  Sizes result_;
};

}  // namespace xgemm::ops
