// Whether strided tensors share memory, decided by elements and not by the ranges they span.
//
// Two elements share an address where a sum of strides, each times an index within its bounds, hits
// a small interval. A depth-first search over the strides, largest first, settles that: the reach
// of those that are left bounds each index, mostly to one value, and their greatest common divisor
// rules out the rest. In general the question is as hard as the knapsack problem, so the search
// has a budget; what it cannot settle counts as shared.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/checks.h"

namespace xgemm::ops {
namespace {

int64_t item_size(const TensorView& view) {
  return static_cast<int64_t>(aoti_torch_dtype_element_size(view.dtype_code));
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// The sums of stride * index over all terms, 0 <= index <= most.
class StridedSums {
 public:
  void add(int64_t stride, int64_t most) {
    if (stride != 0 && most > 0) terms_.push_back({stride, most, 0, 0});
  }

  // Whether some sum may lie in [low, high].
  bool may_hit(int64_t low, int64_t high) {
    std::sort(terms_.begin(), terms_.end(),
              [](const Term& a, const Term& b) { return a.stride > b.stride; });
    merge_equal_strides();
    int64_t reach = 0, divisor = 0;
    for (size_t i = terms_.size(); i-- > 0;) {
      reach += terms_[i].stride * terms_[i].most;
      divisor = std::gcd(divisor, terms_[i].stride);
      terms_[i].reach = reach;
      terms_[i].divisor = divisor;
    }
    budget_ = 100'000;  // about a millisecond
    return search(0, low, high);
  }

 private:
  struct Term {
    int64_t stride, most;
    int64_t reach, divisor;  // of this term and all after it
  };

  void merge_equal_strides() {
    size_t kept = 0;
    for (size_t i = 0; i < terms_.size(); ++i) {
      if (kept > 0 && terms_[kept - 1].stride == terms_[i].stride) {
        terms_[kept - 1].most += terms_[i].most;
      } else {
        terms_[kept++] = terms_[i];
      }
    }
    terms_.resize(kept);
  }

  bool search(size_t depth, int64_t low, int64_t high) {
    if (low <= 0 && high >= 0) return true;
    if (high < 0 || depth == terms_.size()) return false;
    if (--budget_ < 0) return true;
    const Term& term = terms_[depth];
    if (low > term.reach || floor_div(high, term.divisor) * term.divisor < low) return false;
    const int64_t rest = depth + 1 < terms_.size() ? terms_[depth + 1].reach : 0;
    const int64_t first = std::max<int64_t>(0, -floor_div(rest - low, term.stride));
    const int64_t last = std::min(term.most, high / term.stride);
    for (int64_t index = first; index <= last; ++index) {
      if (search(depth + 1, low - index * term.stride, high - index * term.stride)) return true;
    }
    return false;
  }

  std::vector<Term> terms_;
  int64_t budget_ = 0;
};

// Addresses of a tensor's first and last element.
struct Span {
  explicit Span(const TensorView& view) : first(reinterpret_cast<int64_t>(view.data())) {
    last = first;
    for (int64_t d = 0; d < view.dim; ++d) {
      last += (view.sizes[d] - 1) * view.strides[d] * item_size(view);
    }
  }
  int64_t first, last;
};

}  // namespace

void require_no_self_overlap(const char* op, const char* name, const TensorView& view) {
  if (view.contiguous() || view.numel() == 0) return;
  // Two elements that differ first in dimension d, there by 1 or more, and anyhow in those after.
  for (int64_t d = 0; d < view.dim; ++d) {
    if (view.sizes[d] == 1) continue;
    StridedSums sums;
    sums.add(view.strides[d], view.sizes[d] - 2);
    int64_t target = -view.strides[d];
    for (int64_t e = d + 1; e < view.dim; ++e) {
      sums.add(view.strides[e], 2 * (view.sizes[e] - 1));
      target += (view.sizes[e] - 1) * view.strides[e];
    }
    if (!sums.may_hit(target, target)) continue;
    value_error(op, ": ", name, " must not overlap itself, got shape ", shape_of(view),
                " with strides ", shape_of(view.strides, view.dim));
  }
}

void require_no_overlap(const char* op, const char* name, const TensorView& written,
                        const char* other_name, const TensorView& other) {
  if (written.numel() == 0 || other.numel() == 0 || !written.same_device(other)) return;
  const Span a(written), b(other);
  const int64_t a_item = item_size(written), b_item = item_size(other);
  if (a.last + a_item <= b.first || b.last + b_item <= a.first) return;
  // An address of `other` less one of `written`, the latter counted down from its last element.
  StridedSums sums;
  for (int64_t d = 0; d < written.dim; ++d) {
    sums.add(written.strides[d] * a_item, written.sizes[d] - 1);
  }
  for (int64_t d = 0; d < other.dim; ++d) sums.add(other.strides[d] * b_item, other.sizes[d] - 1);
  const int64_t apart = a.last - b.first;
  if (!sums.may_hit(apart - b_item + 1, apart + a_item - 1)) return;
  value_error(op, ": ", name, " must not overlap ", other_name,
              ", got two views of the same memory, of shapes ", shape_of(written), " and ",
              shape_of(other));
}

}  // namespace xgemm::ops
