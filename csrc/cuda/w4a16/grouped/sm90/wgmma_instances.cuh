// From a tile's rows and the weight's format to the wgmma kernel compiled for it.
#pragma once

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/w4a16/grouped/instances.h"
#include "cuda/w4a16/grouped/sm90/wgmma.cuh"

namespace xgemm::cuda::w4a16::grouped::sm90 {

inline UnitFormat format_of(const w4a16::sm80::Params& format) {
  return {.unit_bytes = format.unit_bytes,
          .strip_bytes = format.strip_bytes,
          .groups_per_unit = format.per_channel ? 0 : 4 >> format.group_quarters_log2,
          .zeros = format.zeros,
          .bf16_scales = format.bf16_scales};
}

template <typename T, typename Tile>
Status launch_wgmma_tile(const Params& params, int ctas, cudaStream_t stream) {
  static_assert(kSmemBytes<Tile> <= wgmma::kMaxSmemBytes, "a CTA has 227 KB of shared memory");
  constexpr const char* kName = "the W4A16 product by wgmma for experts";
  const auto kernel = wgmma_kernel<T, Tile>;
  static SharedMemoryLimit limit;
  const cudaError_t set = limit.raise(reinterpret_cast<const void*>(kernel), kSmemBytes<Tile>);
  if (set != cudaSuccess) return {set, kName};
  const Grid grid{.blocks = dim3(static_cast<unsigned>(ctas)),
                  .threads = dim3(Tile::kThreads),
                  .shared_bytes = kSmemBytes<Tile>,
                  .stream = stream,
                  .overlaps_previous = true};
  return launch_grid(kName, grid, kernel, params, format_of(params.format));
}

template <typename T, int kRows>
Status launch_wgmma_rows(const Params& params, int ctas, cudaStream_t stream) {
  // The commonest format, as w4a16::is_plain has it.
  const auto& format = params.format;
  const bool of_units = !format.per_channel && format.group_quarters_log2 == 2;
  const bool plain =
      of_units && !format.zeros && (std::is_same_v<T, __nv_bfloat16> || !format.bf16_scales);
  return plain ? launch_wgmma_tile<T, Tile<kRows, true>>(params, ctas, stream)
               : launch_wgmma_tile<T, Tile<kRows, false>>(params, ctas, stream);
}

template <typename T>
Status launch_wgmma(const Params& params, const Persistent& instance, cudaStream_t stream) {
  switch (instance.block_m) {
    case 16:
      return launch_wgmma_rows<T, 16>(params, instance.ctas, stream);
    case 32:
      return launch_wgmma_rows<T, 32>(params, instance.ctas, stream);
    default:
      return launch_wgmma_rows<T, 64>(params, instance.ctas, stream);
  }
}

}  // namespace xgemm::cuda::w4a16::grouped::sm90
