// From a variant to the kernel compiled for it: tiles of few rows.
#pragma once

#include "cuda/w4a16/sm90/wgmma/few.cuh"
#include "cuda/w4a16/sm90/wgmma/launch_kernel.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

template <typename T, int kBlocks, int kParts, int kRows>
Status launch_few_tile(const Params& params, const Variant& variant, const Work& work,
                       cudaStream_t stream) {
  using Plain = FewConfig<kBlocks, kParts, kRows, true>;
  using General = FewConfig<kBlocks, kParts, kRows, false>;
  // By scaled weights a row has other bits than by the other tiles.
  const bool same_bits = !(Plain::kScaledWeights && params.batch_invariant);
  if (variant.plain && !(Plain::kScaledWeights && variant.foreign_scales) && same_bits) {
    return launch_kernel<few_kernel<T, Plain>, Plain, kUnitSmemBytes<Plain>>(params, work, stream);
  }
  return launch_kernel<few_kernel<T, General>, General, kUnitSmemBytes<General>>(params, work,
                                                                                 stream);
}

template <typename T>
Status launch_few(const Params& params, const Variant& variant, const Work& work,
                  cudaStream_t stream) {
#define XGEMM_W4_FEW_TILE(BLOCKS, PARTS, ROWS, CYCLES)                                 \
  if (variant.consumers == BLOCKS && variant.parts == PARTS && variant.rows == ROWS) { \
    return launch_few_tile<T, BLOCKS, PARTS, ROWS>(params, variant, work, stream);     \
  }
  XGEMM_W4_FEW_TILES(XGEMM_W4_FEW_TILE)
#undef XGEMM_W4_FEW_TILE
  return {cudaErrorInvalidValue, "the W4A16 product by wgmma: no such tile of few rows"};
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
