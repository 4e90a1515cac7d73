// Reductions on the CPU over any set of dimensions of a strided tensor.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/parallel.h"

namespace xgemm::cpu {

enum class ReduceOp : int8_t { kSum, kMean, kProd, kAmax, kAmin, kNorm, kArgmax, kArgmin };

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
  void* out = nullptr;  // of reduce_output_dtype(op, in_dtype)
  ReduceDims kept, reduced;
  double p = 2.0;  // order of the norm; may be 0, inf, -inf
};

// The bits of the result do not depend on the number of threads.
void reduce(const ReduceProblem& problem, const Parallel& parallel);

}  // namespace xgemm::cpu
