// What the host tells the kernels on the FP64 tensor cores.
#pragma once

#include <cuda.h>

#include "cuda/gemm/fp32/params.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

struct TmaOperand {
  CUtensorMap map;  // 3-D: along its contiguous dimension, along the other one, batch
  bool along_k;     // k is contiguous, else the rows are
  bool batched;     // else the operand is the same for every batch
};

struct TmaParams {
  TmaOperand a, b;
  Params problem;
};

}  // namespace xgemm::cuda::gemm::fp32::sm90
