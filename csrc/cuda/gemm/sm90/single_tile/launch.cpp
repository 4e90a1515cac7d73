#include "cuda/gemm/sm90/single_tile/launch.h"

#include "common/math.h"
#include "cuda/gemm/make_params.h"
#include "cuda/gemm/sm80/plan.h"
#include "cuda/gemm/sm90/operand.h"
#include "cuda/gemm/sm90/operand_map.h"
#include "cuda/gemm/sm90/operand_policy.h"
#include "cuda/gemm/sm90/single_tile/instances.h"
#include "cuda/gemm/sm90/swap.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

namespace {

constexpr int64_t kMaxEvictFirstBytes = 400'000'000;  // operand_policies

// Of the second launch, which is split-K's of sm80.
sm80::Params sum_of_parts(const GemmProblem& p, int parts, float* partials) {
  sm80::Params params = sm80::make_params(p);
  params.splits = parts, params.partials = partials;
  return params;
}

}  // namespace

Status launch(const GemmProblem& given, const Config& config, void* workspace,
              cudaStream_t stream) {
  const GemmProblem p = config.swapped ? swapped(given) : given;
  const Batch a_batch = batch_of(p, &BatchDim::a), b_batch = batch_of(p, &BatchDim::b);
  const Batch d_batch = batch_of(p, &BatchDim::d);
  const bool a_mn = !a_k_major(p), b_mn = !b_k_major(p);
  Params params{};
  params.m = static_cast<int>(p.m), params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  const OperandPolicies policies = operand_policies(p, kMaxEvictFirstBytes);
  params.a_policy = policies.a, params.b_policy = policies.b;
  params.tile_m = config.tile_m, params.tile_n = config.tile_n;
  params.batch = static_cast<int>(d_batch.extent[0] * d_batch.extent[1]);
  params.batched = params.batch > 1;
  params.batch_inner = FastDivisor(static_cast<uint32_t>(d_batch.extent[0]));
  for (int i = 0; i < 2; ++i) {
    params.a_batched[i] = a_batch.stride[i] != 0, params.b_batched[i] = b_batch.stride[i] != 0;
    params.d_batch_stride[i] = d_batch.stride[i];
  }
  params.d = p.d, params.d_row_stride = p.d_row_stride, params.d_col_stride = p.d_col_stride;
  params.transposed = !d_fits_tma(p) && d_fits_tma(swapped(p));
  params.vector_store = d_fits_tma(p);
  params.bias = p.bias, params.bias_stride = p.bias_stride;
  params.bias_of_rows = config.swapped;
  params.activation = p.activation;
  params.parts = config.splits;
  const int chunks = ceil_div(params.k, kChunkK);
  params.part_chunks = chunks / params.parts, params.longer_parts = chunks % params.parts;
  params.plain_end = p.bias == nullptr && p.activation == Activation::kNone && params.parts == 1;
  params.a_chunked = a_mn && p.m % kSwizzleElements == 0;
  params.b_chunked = b_mn && p.n % kSwizzleElements == 0 && config.tile_n % kSwizzleElements == 0;
  params.cluster = config.clusters;
  params.share_rows = params.cluster.along_n > 1 ? config.tile_m / params.cluster.along_n
                                                 : config.tile_n / params.cluster.along_m;
  params.rows_first = p.m < p.n;
  params.raster = config.raster;
  params.plain = !params.batched && params.cluster.size() == 1;
  const bool encoded = encode_operand(&params.a, p,
                                      {p.a.data, p.m, p.a.row_stride, p.a.col_stride, a_batch, a_mn,
                                       params.a_chunked, config.tile_m, params.cluster.along_n}) &&
                       encode_operand(&params.b, p,
                                      {p.b.data, p.n, p.b.col_stride, p.b.row_stride, b_batch, b_mn,
                                       params.b_chunked, config.tile_n, params.cluster.along_m});
  if (!encoded) {
    return {cudaErrorInvalidValue, "encoding a tensor map of the sm_90a GEMM for small products"};
  }
  const bool f16 = p.dtype == DType::kF16;
  const auto run = f16 ? launch_f16 : launch_bf16;
  const Variant variant{config.shape->block_m, config.shape->block_n, a_mn, b_mn};
  if (params.parts == 1) return run(params, variant, stream);
  const sm80::Params sum = sum_of_parts(given, params.parts, static_cast<float*>(workspace));
  params.bias = nullptr, params.activation = Activation::kNone;
  params.partials = sum.partials, params.part_stride = sum.m * sum.partial_stride;
  const bool same = is_column_major(given) == config.swapped;  // as this D lies
  params.partial_row_stride = same ? sum.partial_stride : 1;
  params.partial_col_stride = same ? 1 : sum.partial_stride;
  const Status status = run(params, variant, stream);
  if (!status.ok()) return status;
  return f16 ? add_parts_f16(sum, stream) : add_parts_bf16(sum, stream);
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
