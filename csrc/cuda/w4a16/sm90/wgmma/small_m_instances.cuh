// From a variant to the kernel compiled for it: small-M tiles.
#pragma once

#include "cuda/w4a16/sm90/wgmma/launch_kernel.cuh"
#include "cuda/w4a16/sm90/wgmma/small_m.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

template <typename T, int kBlocks, int kParts, int kRows>
Status launch_small_m_tile(const Params& params, const Variant& variant, const Work& work,
                           cudaStream_t stream) {
  using Plain = SmallMConfig<kBlocks, kParts, kRows, true>;
  using General = SmallMConfig<kBlocks, kParts, kRows, false>;
  if (variant.plain) {
    return launch_kernel<small_m_kernel<T, Plain>, Plain, kUnitSmemBytes<Plain>>(params, work,
                                                                                 stream);
  }
  return launch_kernel<small_m_kernel<T, General>, General, kUnitSmemBytes<General>>(params, work,
                                                                                     stream);
}

template <typename T>
Status launch_small_m(const Params& params, const Variant& variant, const Work& work,
                      cudaStream_t stream) {
#define XGEMM_W4_SMALL_M_TILE(BLOCKS, PARTS, ROWS, CYCLES)                             \
  if (variant.consumers == BLOCKS && variant.parts == PARTS && variant.rows == ROWS) { \
    return launch_small_m_tile<T, BLOCKS, PARTS, ROWS>(params, variant, work, stream); \
  }
  XGEMM_W4_SMALL_M_TILES(XGEMM_W4_SMALL_M_TILE)
#undef XGEMM_W4_SMALL_M_TILE
  return {cudaErrorInvalidValue, "the W4A16 product by wgmma: no such small-M tile"};
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
