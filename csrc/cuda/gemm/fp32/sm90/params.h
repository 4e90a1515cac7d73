// What the host tells the kernel that TMA feeds.
#pragma once

#include <cuda.h>

#include "cuda/gemm/fp32/params.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

inline constexpr int kBlockM = 128, kBlockN = 128;

struct TmaParams {
  CUtensorMap a, b;           // 3-D: rows, k, batch
  bool a_batched, b_batched;  // else the operand is the same for every batch
  Params problem;
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
