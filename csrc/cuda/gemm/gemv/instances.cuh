// From a Shape to the kernel compiled for it.
#pragma once

#include "cuda/gemm/gemv/instances.h"
#include "cuda/gemm/gemv/kernel.cuh"
#include "cuda/gemm/gemv/row_kernel.cuh"
#include "cuda/launch.h"

namespace xgemm::cuda::gemm::gemv {

template <typename T, int kNarrow, bool kHopper>
Status launch_row_kernel(const Params& params, const Grid& grid, cudaStream_t stream) {
  const auto batches = static_cast<unsigned>(min(params.batches - params.first_batch, kMaxBatches));
  const cuda::Grid launch{.blocks = dim3(grid.tiles, 1, batches),
                          .threads = dim3(grid.warps * 32),
                          .stream = stream,
                          .overlaps_previous = kHopper};
  return launch_grid("the row kernel", launch, row_kernel<T, kNarrow, kHopper>, params);
}

template <typename T, typename Stream, int kShape, int kCtasPerSm, bool kCluster>
Status launch_kernel(const Params& params, const Grid& grid, cudaStream_t stream) {
  constexpr Shape kOf = kShapes[kShape];
  static_assert(Stream::kTile == kOf.tile && Stream::kStepK == kOf.step_k);
  const auto kernel = gemv_kernel<T, Stream, kOf.most_warps * 32, kCtasPerSm, kCluster>;
  static_assert(kOf.most_warps * kOf.narrow * kOf.tile * 4 <= 48 * 1024, "without an opt-in");
  const auto batches = static_cast<unsigned>(min(params.batches - params.first_batch, kMaxBatches));
  const cuda::Grid launch{.blocks = dim3(grid.tiles, params.splits, batches),
                          .threads = dim3(grid.warps * 32),
                          .shared_bytes = grid.warps * params.narrow * kOf.tile * sizeof(float),
                          .stream = stream,
                          .cluster = dim3(1, grid.cluster, 1),
                          .overlaps_previous = kCluster};
  return launch_grid("the matrix-vector kernel", launch, kernel, params);
}

template <typename T, Access kAccess, bool kCluster>
Status launch_shape(const Params& params, const Shape& shape, const Grid& grid,
                    cudaStream_t stream) {
  const auto run = [&]<typename Stream, int kShape>() {
    constexpr int kCtas = kShapes[kShape].ctas_of_sm(kAccess == Access::kAligned);
    return launch_kernel<T, Stream, kShape, kCtas, kCluster>(params, grid, stream);
  };
  switch (&shape - kShapes) {
    case 2:
      return run.template operator()<KMajorStream<T, kAccess, 1, 8>, 2>();
    case 3:
      return run.template operator()<KMajorStream<T, kAccess, 2, 4>, 3>();
    case 4:
      return run.template operator()<KMajorStream<T, kAccess, 4, 2>, 4>();
    case 5:
      return run.template operator()<KMajorStream<T, kAccess, 8, 2>, 5>();
    case 6:
      return run.template operator()<WideMajorFma<T, kAccess, 1>, 6>();
    case 7:
      return run.template operator()<WideMajorFma<T, kAccess, 2>, 7>();
    default:
      return run.template operator()<WideMajorMma<T, kAccess>, 8>();
  }
}

template <typename T, bool kCluster>
Status launch_typed(const Params& params, const Shape& shape, bool aligned, const Grid& grid,
                    cudaStream_t stream) {
  if (shape.by_rows) {
    const auto run_rows =
        shape.narrow == 1 ? launch_row_kernel<T, 1, kCluster> : launch_row_kernel<T, 2, kCluster>;
    return run_rows(params, grid, stream);
  }
  const auto run = aligned ? launch_shape<T, Access::kAligned, kCluster>
                           : launch_shape<T, Access::kAny, kCluster>;
  return run(params, shape, grid, stream);
}

template <typename T>
Status sum_splits(const Params& params, cudaStream_t stream) {
  const int64_t outputs = params.batches * params.narrow * params.wide;
  const auto ctas = static_cast<unsigned>(min(ceil_div<int64_t>(outputs, 256), int64_t{4096}));
  const cuda::Grid grid{.blocks = dim3(ctas), .threads = dim3(256), .stream = stream};
  return launch_grid("the sum over the splits of k", grid, sum_splits_kernel<T>, params);
}

}  // namespace xgemm::cuda::gemm::gemv
