// cuTensorMapEncodeTiled, got from the driver at run time so that nothing links libcuda.
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

namespace xgemm::cuda {

// Null where the driver has none.
inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto kEncode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                     &found);
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return kEncode;
}

}  // namespace xgemm::cuda
