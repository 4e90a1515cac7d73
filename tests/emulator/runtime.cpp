// The CUDA runtime, as far as csrc/ calls it.
#include "emulator/runtime.h"

#include <cuda_runtime.h>

#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "emulator/tensor_map.h"

namespace xgemm::emulator {
namespace {

struct Device {
  int capability, sm_count;
};
// Never shorter again, as csrc/ keeps what it has asked about a device.
std::vector<Device>& devices() {
  static std::vector<Device> all{{90, 132}};
  return all;
}
int current_device = 0;

uint32_t most_shared_bytes(int capability) {
  return (capability == 90 ? 227 : capability == 80 ? 163 : 99) << 10;
}
constexpr uint32_t kSharedBytesUnasked = 48 << 10;
std::map<std::pair<int, const void*>, uint32_t>& shared_limits() {  // of a device's kernels
  static std::map<std::pair<int, const void*>, uint32_t> all;
  return all;
}

constexpr uint64_t kPortableCluster = 8, kMaxCluster = 16;  // blocks
std::set<const void*>& kernels_of_large_clusters() {
  static std::set<const void*> all;
  return all;
}

uint64_t count(const dim3& size) { return uint64_t{size.x} * size.y * size.z; }

}  // namespace

void use_device(int capability, int sm_count) {
  for (size_t i = 0; i < devices().size(); ++i) {
    if (devices()[i].capability == capability && devices()[i].sm_count == sm_count) {
      current_device = static_cast<int>(i);
      return;
    }
  }
  current_device = static_cast<int>(devices().size());
  devices().push_back({capability, sm_count});
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   const std::function<void()>& body) {
  GridShape shape{config.gridDim, config.blockDim, dim3(1, 1, 1),
                  static_cast<uint32_t>(config.dynamicSmemBytes)};
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id != cudaLaunchAttributeClusterDimension) continue;
    const auto& cluster = config.attrs[i].val.clusterDim;
    shape.cluster = dim3(cluster.x, cluster.y, cluster.z);
  }
  const dim3 &grid = shape.blocks, &cluster = shape.cluster;
  const int capability = devices()[static_cast<size_t>(current_device)].capability;
  const bool whole = count(cluster) > 0 && grid.x % cluster.x == 0 && grid.y % cluster.y == 0 &&
                     grid.z % cluster.z == 0;
  const bool large = kernels_of_large_clusters().count(kernel) > 0;
  const uint64_t most = capability < 90 ? 1 : large ? kMaxCluster : kPortableCluster;
  if (!whole || count(cluster) > most || count(grid) == 0 || grid.x > 0x7fffffff ||
      grid.y > 65535 || grid.z > 65535 || count(config.blockDim) == 0 ||
      count(config.blockDim) > 1024) {
    return cudaErrorInvalidConfiguration;
  }
  const auto limit = shared_limits().find({current_device, kernel});
  if (shape.shared_bytes > (limit == shared_limits().end() ? kSharedBytesUnasked : limit->second)) {
    return cudaErrorInvalidValue;
  }
  run_grid(shape, body);
  return cudaSuccess;
}

}  // namespace xgemm::emulator

using namespace xgemm::emulator;  // NOLINT: the functions below are C's

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess             ? "no error"
         : error == cudaErrorInvalidValue ? "invalid argument"
                                          : "invalid configuration argument";
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const auto& asked = devices()[static_cast<size_t>(device)];
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = asked.sm_count;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = asked.capability / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = asked.capability % 10;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(most_shared_bytes(asked.capability));
      break;
    default:
      *value = 0;  // clocks: nothing is timed here
  }
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
    if (value != 0) kernels_of_large_clusters().insert(kernel);
    return cudaSuccess;
  }
  const int capability = devices()[static_cast<size_t>(current_device)].capability;
  if (value < 0 || static_cast<uint32_t>(value) > most_shared_bytes(capability)) {
    return cudaErrorInvalidValue;
  }
  shared_limits()[{current_device, kernel}] = static_cast<uint32_t>(value);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*,
                                           const cudaLaunchConfig_t* config) {
  const auto& cluster = config->attrs[0].val.clusterDim;
  const int blocks = static_cast<int>(cluster.x * cluster.y * cluster.z);
  *clusters = devices()[static_cast<size_t>(current_device)].sm_count / blocks;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  if (std::string_view(name) != "cuTensorMapEncodeTiled") return cudaErrorInvalidValue;
  *function = reinterpret_cast<void*>(&encode_tiled);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
