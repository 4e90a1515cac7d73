// What a CUDA launch came to; ops/ turns a failure into an exception.
#pragma once

#include <cuda_runtime_api.h>

namespace xgemm {

struct Status {
  cudaError_t error = cudaSuccess;
  const char* where = "";  // the step that failed
  bool ok() const { return error == cudaSuccess; }
};

}  // namespace xgemm
