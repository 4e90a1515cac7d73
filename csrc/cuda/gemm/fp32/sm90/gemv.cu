#include "cuda/gemm/fp32/gemv.cuh"
#include "cuda/gemm/fp32/sm90/launch.h"
#include "cuda/launch.h"

namespace xgemm::cuda::gemm::fp32::sm90 {
namespace {

template <int kFew>
Status launch_rows(Params params, const Config& config, cudaStream_t stream) {
  params.few_columns = config.block_n;
  const int64_t ctas = params.tiles_n * params.batches * params.splits;
  return launch_grid("the fp32 GEMM",
                     {.blocks = dim3(static_cast<unsigned>(ctas)),
                      .threads = dim3(few_warps(params, config.block_n) * 32),
                      .stream = stream,
                      .cluster = dim3(config.cluster)},
                     find_gemv<kFew, true>(params, config.block_n), params);
}

}  // namespace

Status launch_few(const Params& params, const Config& config, cudaStream_t stream) {
  const auto run = config.block_m == 1   ? launch_rows<1>
                   : config.block_m == 2 ? launch_rows<2>
                                         : launch_rows<4>;
  return run(params, config, stream);
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
