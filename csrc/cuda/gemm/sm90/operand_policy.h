// What L2 does with the lines of an operand. Nothing here needs the CUDA toolkit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/gemm_problem.h"
#include "cuda/gemm/sm90/tma_fit.h"
#include "cuda/ptx/l2_policy.h"

namespace xgemm::cuda::gemm::sm90 {

struct OperandPolicies {
  uint64_t a, b;
};

// Lines of the larger operand, nearly always a weight, are the first to go: else they drive out
// what other kernels have left in L2, and what of it was written must be written to memory first.
// (H200, layers of 129 to 2047 rows: 2 to 10 % less time after kernels that wrote 256 MB, 0 to 4 %
// after one that read them. Not of an operand across K, of whose lines neighbouring tiles read a
// part each, or of more than `most_bytes`: tiles read it more than once, at different times.)
inline OperandPolicies operand_policies(const GemmProblem& p, int64_t most_bytes) {
  OperandPolicies policies{ptx::kEvictNormal, ptx::kEvictNormal};
  const bool a_larger = p.m >= p.n;
  const bool k_major = a_larger ? a_k_major(p) : b_k_major(p);
  if (k_major && p.batch_dims == 0 && 2 * std::max(p.m, p.n) * p.k <= most_bytes) {
    (a_larger ? policies.a : policies.b) = ptx::kEvictFirst;
  }
  return policies;
}

}  // namespace xgemm::cuda::gemm::sm90
