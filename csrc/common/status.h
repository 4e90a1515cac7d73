// What a CUDA launch came to; ops/ turns a failure into an exception.
#pragma once

#include <cuda_runtime_api.h>

namespace xgemm {

struct Status {
  cudaError_t error = cudaSuccess;
  const char* where = "";  // the step that failed
  bool ok() const { return error == cudaSuccess; }
};

// The status of the launch just made; also clears the error, so that it is not blamed on the next
// call.
inline Status launch_status(const char* where) { return {cudaGetLastError(), where}; }

}  // namespace xgemm
