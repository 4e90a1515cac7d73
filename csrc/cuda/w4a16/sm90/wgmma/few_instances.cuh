// From a variant to the kernel compiled for it: tiles of few rows.
#pragma once

#include "cuda/w4a16/sm90/wgmma/few.cuh"
#include "cuda/w4a16/sm90/wgmma/launch_kernel.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

template <typename T, typename Config>
Status launch_few_tile(const Params& params, const Work& work, cudaStream_t stream) {
  return launch_kernel<few_kernel<T, Config>, Config, kFewSmemBytes<Config>>(params, work, stream);
}

template <typename T>
Status launch_few(const Params& params, const Variant& variant, const Work& work,
                  cudaStream_t stream) {
#define XGEMM_W4_FEW_TILE(BLOCKS, PARTS, ROWS, CYCLES)                                 \
  if (variant.consumers == BLOCKS && variant.parts == PARTS && variant.rows == ROWS) { \
    return launch_few_tile<T, FewConfig<BLOCKS, PARTS, ROWS>>(params, work, stream);   \
  }
  XGEMM_W4_FEW_TILES(XGEMM_W4_FEW_TILE)
#undef XGEMM_W4_FEW_TILE
  return {cudaErrorInvalidValue, "the W4A16 product by wgmma: no such tile of few rows"};
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
