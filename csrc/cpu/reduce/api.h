// Reductions on the CPU over any set of dimensions of a strided tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "common/dtype.h"
#include "common/parallel.h"

namespace xgemm::cpu {

enum class ReduceOp : int8_t { kSum, kMean, kProd, kAmax, kAmin, kNorm, kArgmax, kArgmin };

struct ReduceDim {
  int64_t size;
  int64_t in_stride;   // elements
  int64_t out_stride;  // elements; unused for a reduced dimension
};

// out[kept] = op over the reduced dimensions. fp16, bf16 and fp32 accumulate in fp32 (or wider),
// fp64 in fp64, integers in int64; NaN wins amax, amin, argmax and argmin as in torch.
// argmax/argmin give the int64 position in the row-major order of the reduced dimensions, the first
// of equals.
struct ReduceProblem {
  ReduceOp op = ReduceOp::kSum;
  DType in_dtype = DType::kF32, out_dtype = DType::kF32;
  const void* in = nullptr;
  void* out = nullptr;
  std::vector<ReduceDim> kept, reduced;  // outermost first
  double p = 2.0;                        // order of the norm; may be 0, inf, -inf
};

void reduce(const ReduceProblem& problem, const Parallel& parallel);

}  // namespace xgemm::cpu
