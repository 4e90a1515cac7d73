// From a Config to the kernel compiled for it.
#pragma once

#include "cuda/gemm/sm90/kernel.cuh"

namespace xgemm::cuda::gemm::sm90 {

template <typename T, typename Tile, bool kAMn, bool kBMn>
Status launch_kernel(const Params& params, const Config& config, cudaStream_t stream) {
  const auto kernel = gemm_kernel<T, Tile, kAMn, kBMn>;
  constexpr int kSmem = kSmemBytes<T, Tile>;
  static_assert(kSmem <= 227 * 1024, "a CTA has 227 KB of shared memory");
  const cudaError_t set =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmem);
  if (set != cudaSuccess) return {set, "shared memory of the sm_90a GEMM"};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(config.ctas);
  launch.blockDim = dim3(kThreads);
  launch.dynamicSmemBytes = kSmem;
  launch.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = Tile::kCluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  launch.attrs = &cluster;
  launch.numAttrs = 1;
  const cudaError_t launched = cudaLaunchKernelEx(&launch, kernel, params);
  if (launched != cudaSuccess) return {launched, "the sm_90a GEMM"};
  return {};
}

template <typename T, typename Tile>
Status launch_layout(const Params& params, const Config& config, bool a_mn, bool b_mn,
                     cudaStream_t stream) {
  if (a_mn && b_mn) return launch_kernel<T, Tile, true, true>(params, config, stream);
  if (a_mn) return launch_kernel<T, Tile, true, false>(params, config, stream);
  if (b_mn) return launch_kernel<T, Tile, false, true>(params, config, stream);
  return launch_kernel<T, Tile, false, false>(params, config, stream);
}

template <typename T>
Status launch_tile(const Params& params, const Config& config, bool a_mn, bool b_mn,
                   cudaStream_t stream) {
  if (config.block_n == 256 && config.cluster == 2) {
    return launch_layout<T, TileConfig<128, 256, 4, 2>>(params, config, a_mn, b_mn, stream);
  }
  if (config.block_n == 256) {
    return launch_layout<T, TileConfig<128, 256, 4, 1>>(params, config, a_mn, b_mn, stream);
  }
  return launch_layout<T, TileConfig<128, 128, 6, 1>>(params, config, a_mn, b_mn, stream);
}

}  // namespace xgemm::cuda::gemm::sm90
