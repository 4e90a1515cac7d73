// The current CUDA stream, and what becomes of a kernel's Status. Only in a build with CUDA.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/c/shim.h>

#include "common/status.h"
#include "ops/errors.h"

// Weak, because only a torch with CUDA has it: the same library loads where torch has none.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

namespace xgemm::ops {

inline cudaStream_t current_stream(int32_t device_index) {
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream == nullptr) {
    throw std::runtime_error("xgemm: this torch has no CUDA, yet a tensor is on a CUDA device");
  }
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_index, &stream));
  return static_cast<cudaStream_t>(stream);
}

inline void require_ok(const char* op, const Status& status) {
  if (status.ok()) return;
  throw std::runtime_error(
      concat(op, ": CUDA error in ", status.where, ": ", cudaGetErrorString(status.error)));
}

}  // namespace xgemm::ops
