#include "cuda/gemm/sm90/skinny/launch.h"

#include "common/math.h"
#include "cuda/gemm/sm90/skinny/instances.h"
#include "cuda/gemm/sm90/skinny/view.h"
#include "cuda/gemm/sm90/tensor_map.h"
#include "cuda/ptx/l2_policy.h"

namespace xgemm::cuda::gemm::sm90::skinny {
namespace {

// Boxes are 64 k of `rows` rows; of 64 where rows are not along K.
bool encode(CUtensorMap* map, const Matrix& x, const GemmProblem& problem, int64_t batch,
            int rows) {
  const int64_t batches = x.batch_stride != 0 ? batch : 1;
  MapShape shape{};
  if (x.k_major) {
    shape = {3,
             {problem.k, x.extent, batches},
             {1, x.stride, x.batch_stride},
             {kSwizzleElements, rows, 1}};
  } else {
    shape = {3,
             {x.extent, problem.k, batches},
             {1, x.k_stride, x.batch_stride},
             {kSwizzleElements, kSwizzleElements, 1}};
  }
  return encode_tensor_map(map, x.data, problem.dtype, shape);
}

Params params_of(const GemmProblem& p, const View& view, const Config& config) {
  const int64_t d_batch_stride = p.batch_dims > 0 ? p.batch[0].d : 0;
  Params params{};
  params.wide_extent = static_cast<int>(view.wide.extent);
  params.narrow_extent = static_cast<int>(view.narrow.extent);
  params.k = static_cast<int>(p.k);
  params.batch = static_cast<int>(view.batch);
  params.wide_batched = view.wide.batch_stride != 0;
  params.narrow_batched = view.narrow.batch_stride != 0;
  params.rows = config.rows, params.stages = config.stages;
  params.wide_tiles = ceil_div(params.wide_extent, config.rows);
  params.narrow_tiles = ceil_div(params.narrow_extent, config.columns);
  params.tiles = params.wide_tiles * params.narrow_tiles * params.batch;
  params.splits = config.splits;
  while (1 << params.split_shift < config.splits) ++params.split_shift;
  const bool read_once = params.narrow_tiles == 1 && (params.wide_batched || params.batch == 1);
  params.wide_policy =
      read_once && streams_past_l2(view, p.k) ? ptx::kEvictFirst : ptx::kEvictNormal;
  params.narrow_policy = ptx::kEvictNormal;
  params.d = p.d;
  params.d_wide_stride = view.wide_is_b ? p.d_col_stride : p.d_row_stride;
  params.d_narrow_stride = view.wide_is_b ? p.d_row_stride : p.d_col_stride;
  params.d_batch_stride = d_batch_stride;
  params.vector_store = params.d_wide_stride == 1 && params.d_narrow_stride % 8 == 0 &&
                        d_batch_stride % 8 == 0 && reinterpret_cast<uintptr_t>(p.d) % 16 == 0;
  params.bias = p.bias;
  params.bias_wide_stride = view.wide_is_b ? p.bias_stride : 0;
  params.bias_narrow_stride = view.wide_is_b ? 0 : p.bias_stride;
  params.activation = p.activation;
  return params;
}

}  // namespace

Status launch(const GemmProblem& problem, const Config& config, void*, cudaStream_t stream) {
  const View view = view_of(problem);
  Params params = params_of(problem, view, config);
  if (!encode(&params.wide, view.wide, problem, view.batch, config.rows) ||
      !encode(&params.narrow, view.narrow, problem, view.batch, config.columns)) {
    return {cudaErrorInvalidValue, "encoding a tensor map of the skinny sm_90a GEMM"};
  }
  const Variant variant{config.columns, !view.wide.k_major, !view.narrow.k_major};
  const auto run = problem.dtype == DType::kF16 ? launch_f16 : launch_bf16;
  return run(params, variant, config.ctas, stream);
}

}  // namespace xgemm::cuda::gemm::sm90::skinny
