#include "cuda/gemm/fp32/sm90/launch.cuh"
#include "cuda/gemm/fp32/sm90/launch.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

Status launch_tf32(const Params& params, const Config& config, void* workspace,
                   cudaStream_t stream) {
  constexpr Precision kTf32 = Precision::kTf32;
  const auto run = tma_reads(params) ? launch_tile<Tile<kTileOfTf32, kTf32, true>>
                                     : launch_tile<Tile<kTileOfTf32, kTf32, false>>;
  return run(params, config, workspace, stream);
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
