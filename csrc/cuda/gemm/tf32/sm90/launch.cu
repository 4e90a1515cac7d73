#include <cstdlib>

#include "cuda/gemm/sm90/tensor_map.h"
#include "cuda/gemm/tf32/sm90/kernel.cuh"
#include "cuda/gemm/tf32/sm90/launch.h"
#include "cuda/gemm/tf32/tiles.h"
#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"

namespace xgemm::cuda::gemm::tf32::sm90 {
namespace {

// Boxes of 32 k of `rows` rows; of 32 rows where rows are not along k.
bool encode(CUtensorMap* map, const Matrix& x, int64_t k, int64_t batches, int rows,
            bool round_to_tf32) {
  const bool along_k = x.fits_along_k();
  return gemm::sm90::encode_tensor_map(
      map, x.data, DType::kF32,
      {.dims = 3,
       .extent = {along_k ? k : x.rows, along_k ? x.rows : k, batches},
       .stride = {1, along_k ? x.row_stride : x.k_stride, x.batch_stride},
       .box = {32, along_k ? rows : kBlockK, 1},
       .round_to_tf32 = round_to_tf32});
}

template <typename Tile, bool kXAlongRows>
Status launch_kernel(const Params& params, int ctas, cudaStream_t stream) {
  constexpr int kSmem = kSmemBytes<Tile>;
  static_assert(kSmem <= 227 * 1024, "a CTA has 227 KB of shared memory");
  const auto kernel = gemm_kernel<Tile, kXAlongRows>;
  static SharedMemoryLimit limit;
  const cudaError_t set = limit.raise(reinterpret_cast<const void*>(kernel), kSmem);
  if (set != cudaSuccess) return {set, "shared memory of the TF32 GEMM"};
  const Grid grid{
      .blocks = dim3(ctas), .threads = dim3(kThreads), .shared_bytes = kSmem, .stream = stream};
  return launch_grid("the TF32 GEMM", grid, kernel, params);
}

using Launch = Status (*)(const Params&, int, cudaStream_t);

// The kernel for a tile of the lists.
template <bool kThree, bool kXAlongRows>
Launch find_kernel(TileShape tile) {
#define XGEMM_TILE(X, Y, PERCENT)                                \
  if (tile.x == X && tile.y == Y) {                              \
    return launch_kernel<TileConfig<kThree, X, Y>, kXAlongRows>; \
  }
  if constexpr (kThree) {
    XGEMM_TF32X3_TILES(XGEMM_TILE)
  } else {
    XGEMM_TF32_TILES(XGEMM_TILE)
  }
#undef XGEMM_TILE
  return nullptr;
}

// Where the result goes, by X's rows and Y's.
void set_result(Params* params, const GemmProblem& p, bool swapped, const fp32::Params& partials) {
  const auto order = [&](int64_t row, int64_t column, int64_t* x, int64_t* y) {
    *x = swapped ? column : row, *y = swapped ? row : column;
  };
  const BatchDim batch = p.batch_dims > 0 ? p.batch[0] : BatchDim{1, 0, 0, 0, 0};
  if (partials.splits > 1) {
    const bool transposed = partials.transposed;
    params->d = partials.partials;
    order(transposed ? 1 : partials.partial_stride, transposed ? partials.partial_stride : 1,
          &params->d_x_stride, &params->d_y_stride);
    params->d_batch_stride = partials.m * partials.partial_stride;
    params->d_split_stride = partials.batches * params->d_batch_stride;
  } else {
    params->d = static_cast<float*>(p.d);
    order(p.d_row_stride, p.d_col_stride, &params->d_x_stride, &params->d_y_stride);
    params->d_batch_stride = batch.d;
  }
  params->c = static_cast<const float*>(p.c.data);
  order(p.c.row_stride, p.c.col_stride, &params->c_x_stride, &params->c_y_stride);
  params->c_batch_stride = batch.c;
  params->bias = static_cast<const float*>(p.bias);
  order(0, p.bias_stride, &params->bias_x_stride, &params->bias_y_stride);
  params->alpha = p.alpha, params->beta = p.beta;
  params->activation = p.activation;
  params->plain = partials.splits > 1 || (p.alpha == 1.0f && p.beta == 0.0f && p.bias == nullptr &&
                                          p.activation == Activation::kNone);
  const int64_t address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(params->d) / 4);
  const int64_t steps = params->d_batch_stride | params->d_split_stride | address;
  if (params->d_y_stride == 1 && (steps | params->d_x_stride) % 4 == 0) {
    params->d_vectors = Vectors::kAlongY;
  } else if (params->d_x_stride == 1 && (steps | params->d_y_stride) % 2 == 0) {
    params->d_vectors = Vectors::kAlongX;
  }
}

}  // namespace

Status launch(const GemmProblem& p, const Config& config, const fp32::Params& partials,
              cudaStream_t stream) {
  const TileShape tile = config.tile;
  const Matrix x = config.swapped ? b_of(p) : a_of(p), y = config.swapped ? a_of(p) : b_of(p);
  const bool three = p.precision == Precision::kTf32x3;
  Params params{};
  params.x_rows = static_cast<int>(x.rows), params.y_rows = static_cast<int>(y.rows);
  params.k_tiles = static_cast<int>(ceil_div<int64_t>(p.k, kBlockK));
  params.batch = p.batch_dims > 0 ? static_cast<int>(p.batch[0].size) : 1;
  params.x_batched = x.batch_stride != 0, params.y_batched = y.batch_stride != 0;
  params.splits = config.splits;
  params.k_tiles_per_split = ceil_div(params.k_tiles, config.splits);
  params.tiles_x = static_cast<int>(ceil_div<int64_t>(x.rows, tile.x));
  params.tiles_y = static_cast<int>(ceil_div<int64_t>(y.rows, tile.y));
  params.work_tiles = params.tiles_x * params.tiles_y * params.batch * params.splits;
  set_result(&params, p, config.swapped, partials);
  const auto batches = [&](bool batched) { return batched ? params.batch : 1; };
  if (!encode(&params.x, x, p.k, batches(params.x_batched), tile.x, !three) ||
      !encode(&params.y, y, p.k, batches(params.y_batched), tile.y, !three)) {
    return {cudaErrorInvalidValue, "encoding a tensor map of the TF32 GEMM"};
  }
  const bool along_rows = !x.fits_along_k();
  const auto find = three ? (along_rows ? find_kernel<true, true> : find_kernel<true, false>)
                          : (along_rows ? find_kernel<false, true> : find_kernel<false, false>);
  const Launch run = find(tile);
  if (run == nullptr) return {cudaErrorInvalidValue, "choosing a TF32 kernel"};
  return run(params, config.ctas, stream);
}

}  // namespace xgemm::cuda::gemm::tf32::sm90
