#include "cuda/gemm/sm90/launch.h"
#include "cuda/gemm/sm90/params.h"
#include "cuda/gemm/sm90/tensor_map.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90 {
namespace {

// Neighbouring tiles run over this many rows of D before the next columns (measured: 1024 to 4096
// make no difference beyond noise).
constexpr int kGroupRows = 2048;

// An operand as the kernel sees it: its MN extent, its strides, and how a load takes it.
struct Loads {
  const void* data;
  int64_t mn, mn_stride, k_stride, batch, batch_stride;
  bool mn_major, chunked;
  int rows, sharers;
};

bool encode_operand(CUtensorMap* map, const Problem& problem, const Loads& o) {
  MapShape shape{};
  if (!o.mn_major) {
    shape = {4,
             {problem.k, o.mn, 1, o.batch},
             {1, o.mn_stride, 0, o.batch_stride},
             {kBlockK, o.rows / o.sharers, 1, 1}};
  } else if (o.chunked) {
    shape = {4,
             {kSwizzleElements, problem.k, o.mn / kSwizzleElements, o.batch},
             {1, o.k_stride, kSwizzleElements, o.batch_stride},
             {kSwizzleElements, kBlockK, chunks_per_load(o.rows, o.sharers), 1}};
  } else {
    shape = {4,
             {o.mn, problem.k, 1, o.batch},
             {1, o.k_stride, 0, o.batch_stride},
             {kSwizzleElements, kBlockK, 1, 1}};
  }
  return encode_tensor_map(map, o.data, problem.dtype, shape);
}

}  // namespace

Status launch(const Problem& problem, const Config& config, cudaStream_t stream) {
  const BatchDim batch = problem.batch_dims > 0 ? problem.batch[0] : BatchDim{1, 0, 0, 0, 0};
  Params params{};
  params.m = static_cast<int>(problem.m);
  params.n = static_cast<int>(problem.n);
  params.k = static_cast<int>(problem.k);
  params.batch = static_cast<int>(batch.size);
  params.a_batched = batch.a != 0, params.b_batched = batch.b != 0;
  params.group_rows = kGroupRows / (config.block_m * config.cluster);
  params.tma_store = config.tma_store;
  params.d_data = problem.d;
  params.d_row_stride = problem.d_row_stride;
  params.d_col_stride = problem.d_col_stride;
  params.d_batch_stride = batch.d;
  params.bias = problem.bias;
  params.bias_stride = problem.bias_stride;
  params.activation = problem.activation;
  const bool a_mn = !a_k_major(problem), b_mn = !b_k_major(problem);
  params.a_chunked = a_mn && problem.m % kSwizzleElements == 0;
  params.b_chunked = b_mn && problem.n % kSwizzleElements == 0;
  const auto batches = [&](bool batched) { return batched ? batch.size : 1; };
  bool encoded = encode_operand(
      &params.a, problem,
      {problem.a.data, problem.m, problem.a.row_stride, problem.a.col_stride,
       batches(params.a_batched), batch.a, a_mn, params.a_chunked, config.block_m, 1});
  encoded &= encode_operand(
      &params.b, problem,
      {problem.b.data, problem.n, problem.b.col_stride, problem.b.row_stride,
       batches(params.b_batched), batch.b, b_mn, params.b_chunked, config.block_n, config.cluster});
  if (config.tma_store) {
    const int columns = store_columns(config.block_n);
    encoded &=
        encode_tensor_map(&params.d, problem.d, problem.dtype,
                          {3,
                           {problem.n, problem.m, batch.size},
                           {1, problem.d_row_stride, batch.d},
                           {columns, 64, 1},
                           columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B});
  }
  if (!encoded) return {cudaErrorInvalidValue, "encoding a tensor map of the sm_90a GEMM"};
  const auto run = problem.dtype == DType::kF16 ? launch_f16 : launch_bf16;
  return run(params, config, a_mn, b_mn, stream);
}

}  // namespace xgemm::cuda::gemm::sm90
