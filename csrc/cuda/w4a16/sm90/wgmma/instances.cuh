// From a variant to the kernel compiled for it.
#pragma once

#include "cuda/w4a16/sm90/wgmma/large_m.cuh"
#include "cuda/w4a16/sm90/wgmma/launch_kernel.cuh"
#include "cuda/w4a16/sm90/wgmma/medium_m.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

template <typename T, typename Config, bool kForeign>
Status launch_variant(const Params& params, const Work& work, cudaStream_t stream) {
  return launch_kernel<large_m_kernel<T, Config, kForeign>, Config, kSmemBytes<Config>>(
      params, work, stream);
}

template <typename T, int kConsumers, int kRows>
Status launch_medium_m(const Params& params, const Work& work, cudaStream_t stream) {
  if constexpr (may_split(kConsumers, kRows)) {
    if (params.split_shift > 0) {
      using Tile = MediumMConfig<kConsumers, kRows, true>;
      return launch_kernel<medium_m_kernel<T, Tile>, Tile, kUnitSmemBytes<Tile>>(params, work,
                                                                                 stream);
    }
  }
  using Tile = MediumMConfig<kConsumers, kRows, false>;
  return launch_kernel<medium_m_kernel<T, Tile>, Tile, kUnitSmemBytes<Tile>>(params, work, stream);
}

template <typename T>
Status launch_tile(const Params& params, const Variant& variant, const Work& work,
                   cudaStream_t stream) {
#define XGEMM_W4_WGMMA_TILE(CONSUMERS, ROWS, CYCLES)                                          \
  if (variant.consumers == CONSUMERS && variant.rows == ROWS) {                               \
    return variant.foreign_scales                                                             \
               ? launch_variant<T, TileConfig<CONSUMERS, ROWS>, true>(params, work, stream)   \
               : launch_variant<T, TileConfig<CONSUMERS, ROWS>, false>(params, work, stream); \
  }
  XGEMM_W4_LARGE_M_TILES(XGEMM_W4_WGMMA_TILE)
#undef XGEMM_W4_WGMMA_TILE
#define XGEMM_W4_MIDDLE_TILE(CONSUMERS, ROWS, CYCLES)                 \
  if (variant.consumers == CONSUMERS && variant.rows == ROWS &&       \
      (takes_foreign_scales(ROWS) || !variant.foreign_scales)) {      \
    return launch_medium_m<T, CONSUMERS, ROWS>(params, work, stream); \
  }
  XGEMM_W4_MEDIUM_M_TILES(XGEMM_W4_MIDDLE_TILE)
#undef XGEMM_W4_MIDDLE_TILE
  return {cudaErrorInvalidValue, "the W4A16 product by wgmma: no such tile"};
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
