// A reduction over any set of dimensions of a strided tensor: what it is, and its dimensions in the
// order in which memory likes them.
#pragma once

#include <cstdint>
#include <utility>

#include "common/dtype.h"

namespace xgemm {

enum class ReduceOp : int8_t { kSum, kMean, kProd, kAmax, kAmin, kNorm, kArgmax, kArgmin };

constexpr bool finds_positions(ReduceOp op) {
  return op == ReduceOp::kArgmax || op == ReduceOp::kArgmin;
}

// What the result is made of: int64 for positions and for sums and products of integers, else the
// input's type.
constexpr DType reduce_output_dtype(ReduceOp op, DType in) {
  switch (op) {
    case ReduceOp::kArgmax:
    case ReduceOp::kArgmin:
      return DType::kI64;
    case ReduceOp::kSum:
    case ReduceOp::kProd:
      return is_floating(in) ? in : DType::kI64;
    default:
      return in;
  }
}

struct ReduceDim {
  int64_t size;
  int64_t in_stride;   // elements
  int64_t out_stride;  // elements; unused for a reduced dimension
};

// Dimensions, outermost first, in place: a call allocates nothing for them.
struct ReduceDims {
  static constexpr int kMaxDims = 64;  // torch's own limit
  ReduceDim dims[kMaxDims];            // the first `count` are set
  int count = 0;

  void push(ReduceDim dim) { dims[count++] = dim; }
  const ReduceDim& operator[](int i) const { return dims[i]; }
  ReduceDim& operator[](int i) { return dims[i]; }
  const ReduceDim& innermost() const { return dims[count - 1]; }
  int64_t elements() const {
    int64_t product = 1;
    for (int i = 0; i < count; ++i) product *= dims[i].size;
    return product;
  }
};

// out[kept] = op over the reduced dimensions. fp16, bf16 and fp32 accumulate in fp32 (or wider),
// fp64 in fp64, integers in int64; NaN wins amax, amin, argmax and argmin as in torch.
// argmax/argmin give the int64 position in the row-major order of the reduced dimensions, the first
// of equals. kMean and kNorm take floating types only. An empty reduced extent is allowed for
// kSum (0), kProd (1), kMean (NaN) and a norm of order p >= 0 (0); the caller refuses the others.
struct ReduceProblem {
  ReduceOp op = ReduceOp::kSum;
  DType in_dtype = DType::kF32;
  const void* in = nullptr;
  void* out = nullptr;  // of reduce_output_dtype(op, in_dtype); kept's out_strides are dense
  ReduceDims kept, reduced;
  double p = 2.0;  // order of the norm; may be 0, inf, -inf
};

// Dimensions whose elements are all the same one go outermost: they are the cheapest to loop over.
constexpr bool lies_inside(const ReduceDim& a, const ReduceDim& b) {
  if (a.in_stride == 0 || b.in_stride == 0) return a.in_stride != 0 && b.in_stride == 0;
  return a.in_stride < b.in_stride;
}

// As few dimensions as possible, at least one; sorted by stride where their order is free.
inline ReduceDims merge_dims(const ReduceDims& dims, bool any_order, bool has_output) {
  ReduceDims sorted;
  for (int i = 0; i < dims.count; ++i) {
    if (dims[i].size == 1) continue;
    sorted.push(dims[i]);
    // Insertion sort, outermost first: there are few dimensions, mostly in order already.
    for (int j = sorted.count - 1; any_order && j > 0 && lies_inside(sorted[j - 1], sorted[j]);
         --j) {
      std::swap(sorted[j - 1], sorted[j]);
    }
  }
  ReduceDims merged;
  for (int i = 0; i < sorted.count; ++i) {
    const ReduceDim dim = sorted[i];
    if (merged.count > 0) {
      ReduceDim& last = merged[merged.count - 1];
      const bool joins = last.in_stride == dim.size * dim.in_stride &&
                         (!has_output || last.out_stride == dim.size * dim.out_stride);
      if (joins) {
        last = {last.size * dim.size, dim.in_stride, dim.out_stride};
        continue;
      }
    }
    merged.push(dim);
  }
  if (merged.count == 0) merged.push({1, 1, 1});
  return merged;
}

}  // namespace xgemm
