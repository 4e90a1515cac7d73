#include "cuda/gemm/fp32/gemv.cuh"
#include "cuda/gemm/fp32/parts.cuh"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/fp32/sm90/kernel.cuh"
#include "cuda/gemm/fp32/sm90/launch.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

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
  const WorkTile work_tile = WorkTile::at<Tile>(params, params.whole + tile * params.splits);
  const int64_t row = work_tile.work.m + at / kBlockN, column = work_tile.work.n + at % kBlockN;
  const bool inside = row < params.m && column < params.n;
  ptx::griddep_wait();
  if (kGroups == 1 && !inside) return;
  const float* from = params.partials + int64_t{work_tile.part} * kPart + at;
  const float4 sum = mine.sum_of_groups(mine.sum(from, kPart, inside ? params.splits : 0));
  if (mine.group > 0 || !inside) return;
  finish_row4_inline(params, work_tile.work.batch, sum, row, column);
}

template <TileShape kShape>
Status launch_parts(const Params& p, int split_tiles, cudaStream_t stream) {
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

template <typename Tile, bool kAAlongK, bool kBAlongK>
Status launch_kernel(const TmaParams& params, int ctas, cudaStream_t stream) {
  const auto kernel = gemm_kernel<Tile, kAAlongK, kBAlongK>;
  constexpr int kSmem = sizeof(SharedStorage<Tile>) + 1024;  // + alignment
  constexpr int kOfSystem = 1024;                            // of each CTA
  static_assert(Tile::kCtasPerSm * (kSmem + kOfSystem) <= kSmemOfSm, "the CTAs that an SM holds");
  static SharedMemoryLimit limit;
  const int shared = spread_bytes(kSmem, Tile::kCtasPerSm, ctas);
  const cudaError_t error =
      limit.raise(reinterpret_cast<const void*>(kernel), spread_bytes(kSmem, Tile::kCtasPerSm, 1));
  if (error != cudaSuccess) return {error, "shared memory of the fp32 GEMM"};
  return launch_grid("the fp32 GEMM",
                     {.blocks = dim3(static_cast<unsigned>(ctas)),
                      .threads = dim3(Tile::kThreads),
                      .shared_bytes = static_cast<size_t>(shared),
                      .stream = stream,
                      .overlaps_previous = true},
                     kernel, params);
}

template <typename Tile>
Status launch_layouts(const TmaParams& params, int ctas, cudaStream_t stream) {
  const bool a_along_k = params.a.along_k, b_along_k = params.b.along_k;
  const auto run =
      a_along_k
          ? (b_along_k ? launch_kernel<Tile, true, true> : launch_kernel<Tile, true, false>)
          : (b_along_k ? launch_kernel<Tile, false, true> : launch_kernel<Tile, false, false>);
  return run(params, ctas, stream);
}

template <typename Tile>
Status launch_tile(Params p, const Config& config, void* workspace, cudaStream_t stream) {
  const int tiles = static_cast<int>(p.tiles_m * p.tiles_n * p.batches), splits = config.splits;
  set_splits(&p, 1, workspace);
  p.splits = splits;
  p.k_per_split = round_up<int64_t>(ceil_div<int64_t>(p.k, splits), Tile::kStageDepth);
  p.whole = whole_tiles(tiles, splits, config.ctas);
  TmaParams params{};
  params.problem = p;
  params.a.along_k = p.a.access == Access::kAlongK;
  params.b.along_k = p.b.access == Access::kAlongK;
  if constexpr (Tile::kTma) {
    constexpr bool kRound = Tile::kPrecision == Precision::kTf32;
    if (!encode_operands(&params, kRound)) {
      return {cudaErrorInvalidValue, "encoding a tensor map of the fp32 GEMM"};
    }
  }
  const int split_tiles = tiles - p.whole, ctas = p.whole + split_tiles * splits;
  const Status status = launch_layouts<Tile>(params, ctas, stream);
  if (!status.ok() || split_tiles == 0) return status;
  // Tiles of the same sides share a kernel.
  constexpr TileShape kOfParts = Tile::kBlockM == 64    ? kTile64x64
                                 : Tile::kBlockN == 128 ? kTile32x128
                                                        : kTileSliced;
  return launch_parts<kOfParts>(p, split_tiles, stream);
}

template <bool kTma>
Status launch_config(const Params& params, const Config& config, void* workspace,
                     cudaStream_t stream) {
  const auto is = [&](const TileShape& tile) { return config.shape == &tile; };
  constexpr Precision kIeee = Precision::kIeee;
  const auto run = is(kTile64x64)    ? launch_tile<Tile<kTile64x64, kIeee, kTma>>
                   : is(kTile32x128) ? launch_tile<Tile<kTile32x128, kIeee, kTma>>
                   : is(kTileSliced) ? launch_tile<Tile<kTileSliced, kIeee, kTma>>
                   : is(kTileOfTf32) ? launch_tile<Tile<kTileOfTf32, Precision::kTf32, kTma>>
                                     : launch_tile<Tile<kTileOfWarp, kIeee, kTma>>;
  return run(params, config, workspace, stream);
}

template <int kRows>
Status launch_rows(Params params, const fp32::Config& config, cudaStream_t stream) {
  params.gemv_columns = config.block_n;
  const int64_t ctas = params.tiles_n * params.batches * params.splits;
  const GemvCut cut = gemv_cut(params, config.block_n, params.k_per_split, params.splits);
  return launch_grid("the fp32 GEMM",
                     {.blocks = dim3(static_cast<unsigned>(ctas)),
                      .threads = dim3(cut.warps * 32),
                      .stream = stream,
                      .cluster = dim3(config.cluster)},
                     find_gemv<kRows, true>(params, config.block_n), params);
}

}  // namespace

Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream) {
  const Params params = make_tile_params(problem, config.shape->block_m, config.shape->block_n);
  const auto run = config.by_threads ? launch_config<false> : launch_config<true>;
  return run(params, config, workspace, stream);
}

Status launch_gemv(const Params& params, const fp32::Config& config, cudaStream_t stream) {
  const auto run = config.block_m == 1   ? launch_rows<1>
                   : config.block_m == 2 ? launch_rows<2>
                                         : launch_rows<4>;
  return run(params, config, stream);
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
