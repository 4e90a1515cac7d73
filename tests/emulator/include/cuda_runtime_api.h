// Stand-in for the CUDA toolkit's header: what csrc/ uses of it. runtime.cpp has the functions.
#pragma once

#include <cstddef>

#include "vector_types.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __noinline__  // as __attribute__((__noinline__)) must remain possible
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(BYTES) alignas(BYTES)

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
const char* cudaGetErrorString(cudaError_t error);
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
using cudaStream_t = struct CUstream_st*;

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrClockRate,
  cudaDevAttrMemoryClockRate,
  cudaDevAttrGlobalMemoryBusWidth,
};
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributeNonPortableClusterSizeAllowed,
};
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

enum cudaMemcpyKind { cudaMemcpyDeviceToDevice };
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
inline constexpr unsigned cudaEnableDefault = 0;
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* found);

enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeProgrammaticStreamSerialization,
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* kernel,
                                           const cudaLaunchConfig_t* config);
