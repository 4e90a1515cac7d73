#include "cuda/gemm/fp32/parts.cuh"
#include "cuda/gemm/fp32/sm90/launch.cuh"
#include "cuda/gemm/fp32/sm90/launch.h"

namespace xgemm::cuda::gemm::fp32::sm90 {
namespace {

// D's tiles that were split, from their parts.
template <typename Tile, int kGroups>
__global__ void __launch_bounds__(kPartsThreads)
    reduce_kernel(const __grid_constant__ Params params) {
  const PartsOfQuad<kGroups> mine;
  constexpr int kBlockN = Tile::kBlockN, kPart = Tile::kBlockM * kBlockN;
  constexpr int kBlocks = kPart / 4 / mine.kQuads;  // of a tile
  const int tile = static_cast<int>(blockIdx.x) / kBlocks;
  const int at = (static_cast<int>(blockIdx.x) % kBlocks * mine.kQuads + mine.quad) * 4;
  const Unit unit = Unit::at<Tile>(params, params.whole + tile * params.splits);
  const int64_t row = unit.work.m + at / kBlockN, column = unit.work.n + at % kBlockN;
  const bool inside = row < params.m && column < params.n;
  ptx::griddep_wait();
  if (kGroups == 1 && !inside) return;
  const float* from = params.partials + int64_t{unit.part} * kPart + at;
  const float4 sum = mine.sum_of_groups(mine.sum(from, kPart, inside ? params.splits : 0));
  if (mine.group > 0 || !inside) return;
  finish_few_row4(params, unit.work.batch, sum, row, column);
}

template <TileShape kShape>
Status launch_parts_of(const Params& p, int split_tiles, cudaStream_t stream) {
  using OfShape = Tile<kShape, Precision::kIeee, true>;
  constexpr int kQuads = kShape.block_m * kShape.block_n / 4;
  const bool shared = shares_parts(p.splits, int64_t{split_tiles} * kQuads);
  const int blocks = split_tiles * kQuads / kPartsThreads * (shared ? kPartsGroups : 1);
  return launch_grid("the sum of an fp32 GEMM's parts",
                     {.blocks = dim3(static_cast<unsigned>(blocks)),
                      .threads = dim3(kPartsThreads),
                      .stream = stream,
                      .overlaps_previous = true},
                     shared ? reduce_kernel<OfShape, kPartsGroups> : reduce_kernel<OfShape, 1>, p);
}

template <bool kTma>
Status launch_config(const Params& params, const Config& config, void* workspace,
                     cudaStream_t stream) {
  const auto is = [&](const TileShape& tile) {
    return config.block_m == tile.block_m && config.block_n == tile.block_n &&
           config.stages == tile.stages;
  };
  constexpr Precision kIeee = Precision::kIeee;
  const auto run = is(kTile64x64)    ? launch_tile<Tile<kTile64x64, kIeee, kTma>>
                   : is(kTile32x128) ? launch_tile<Tile<kTile32x128, kIeee, kTma>>
                   : is(kTileSliced) ? launch_tile<Tile<kTileSliced, kIeee, kTma>>
                                     : launch_tile<Tile<kTileOfWarp, kIeee, kTma>>;
  return run(params, config, workspace, stream);
}

}  // namespace

Status launch(const Params& params, const Config& config, void* workspace, cudaStream_t stream) {
  const auto run = tma_reads(params) ? launch_config<true> : launch_config<false>;
  return run(params, config, workspace, stream);
}

Status launch_parts(const Params& params, const TileShape& shape, int split_tiles,
                    cudaStream_t stream) {
  const auto run = shape.block_m == 64    ? launch_parts_of<kTile64x64>
                   : shape.block_n == 128 ? launch_parts_of<kTile32x128>
                                          : launch_parts_of<kTileSliced>;
  return run(params, split_tiles, stream);
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
