// From a Config to the kernel compiled for it.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/device.h"
#include "cuda/gemm/sm80/instances.h"
#include "cuda/gemm/sm80/kernel.cuh"

namespace xgemm::cuda::gemm::sm80 {

// Raises the kernel's limit of dynamic shared memory, once per device.
template <typename Kernel>
cudaError_t allow_shared_memory(Kernel kernel, int bytes, std::atomic<uint64_t>* devices) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if ((devices->load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) devices->fetch_or(bit, std::memory_order_relaxed);
  return error;
}

template <typename T, typename Tile, bool kAMn, bool kBMn, bool kGeneral>
Status launch_kernel(const Params& params, int ctas, cudaStream_t stream) {
  constexpr int kSmemBytes = sizeof(SharedStorage<Tile>);
  const auto kernel = gemm_kernel<T, Tile, kAMn, kBMn, kGeneral>;
  if constexpr (kSmemBytes > 48 * 1024) {
    static std::atomic<uint64_t> allowed{0};
    const cudaError_t error = allow_shared_memory(kernel, kSmemBytes, &allowed);
    if (error != cudaSuccess) return {error, "shared memory of the sm_80 GEMM"};
  }
  kernel<<<ctas, Tile::kThreads, kSmemBytes, stream>>>(params);
  return launch_status("the sm_80 GEMM");
}

template <typename T, typename Tile, bool kGeneral>
Status launch_layout(const Params& params, int ctas, cudaStream_t stream) {
  const bool a_mn = params.a.mn_major, b_mn = params.b.mn_major;
  if (a_mn && b_mn) return launch_kernel<T, Tile, true, true, kGeneral>(params, ctas, stream);
  if (a_mn) return launch_kernel<T, Tile, true, false, kGeneral>(params, ctas, stream);
  if (b_mn) return launch_kernel<T, Tile, false, true, kGeneral>(params, ctas, stream);
  return launch_kernel<T, Tile, false, false, kGeneral>(params, ctas, stream);
}

template <typename T>
Status launch_tile(const Params& params, const Config& config, cudaStream_t stream) {
  const bool general = params.a.access != Access::kWhole16 || params.b.access != Access::kWhole16;
  if (config.block_n == 256) {
    return launch_layout<T, TileLarge, false>(params, config.ctas, stream);
  }
  if (config.block_n == 128) {
    return general ? launch_layout<T, TileGeneral, true>(params, config.ctas, stream)
                   : launch_layout<T, TileMedium, false>(params, config.ctas, stream);
  }
  return general ? launch_layout<T, TileSmall, true>(params, config.ctas, stream)
                 : launch_layout<T, TileSmall, false>(params, config.ctas, stream);
}

}  // namespace xgemm::cuda::gemm::sm80
