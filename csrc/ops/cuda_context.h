// The current CUDA device and stream, and what becomes of a kernel's Status. Only in a build with
// CUDA.
#pragma once

#include <cuda_runtime_api.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/c/shim.h>

#include <optional>

#include "common/status.h"
#include "ops/errors.h"

// Weak, because only a torch with CUDA has it: the same library loads where torch has none.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);

namespace xgemm::ops {

inline void require_ok(const char* op, const Status& status) {
  if (status.ok()) return;
  cudaGetLastError();  // so that it is not blamed on the next launch
  throw std::runtime_error(
      concat(op, ": CUDA error in ", status.where, ": ", cudaGetErrorString(status.error)));
}

// Makes a device that holds a tensor the current one for as long as it lives. Where it is current
// already, as nearly always, torch's guard is left out: it costs a third of a microsecond.
class CurrentDevice {
 public:
  CurrentDevice(const char* op, int32_t index) {
    int current = 0;
    require_ok(op, {cudaGetDevice(&current), "asking for the current device"});
    if (current != index) {
      guard_.emplace(index);
      return;
    }
    // A thread that has not used CUDA yet is told device 0 but has no context, which encoding a
    // tensor map needs.
    thread_local bool has_context = false;
    if (has_context) return;
    require_ok(op, {cudaSetDevice(index), "making the device current"});
    has_context = true;
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

inline cudaStream_t current_stream(int32_t device_index) {
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream == nullptr) {
    throw std::runtime_error("xgemm: this torch has no CUDA, yet a tensor is on a CUDA device");
  }
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_index, &stream));
  return static_cast<cudaStream_t>(stream);
}

}  // namespace xgemm::ops
