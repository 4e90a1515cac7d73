#include "cuda/gemm/sm90/persistent/launch.h"

#include <algorithm>

#include "cuda/gemm/sm90/operand_map.h"
#include "cuda/gemm/sm90/operand_policy.h"
#include "cuda/gemm/sm90/persistent/heads.h"
#include "cuda/gemm/sm90/persistent/params.h"
#include "cuda/gemm/sm90/persistent/shifted.h"
#include "cuda/gemm/sm90/swap.h"
#include "cuda/gemm/sm90/tensor_map.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace xgemm::cuda::gemm::sm90::persistent {
namespace {

// Neighbouring tiles run over this many rows of D before the next columns (measured: 1024 to 4096
// make no difference beyond noise). Where A is the larger operand and no pair shares B, neighbours
// are to have A in common: over 2 rows of tiles (1 to 4: the same; 16: 1 to 10 % slower).
constexpr int kGroupRows = 2048, kGroupTilesOfTall = 2;

constexpr int64_t kMaxEvictFirstBytes = 150'000'000;  // operand_policies

// The rows of tiles of a group. Where two CTAs have half of K each of every tile, fewer: 3.4 % less
// time over 209 such ways, up to 14 % (fewer than 3 and more than 14 rows are level).
uint32_t rows_of_group(const Params& params, int sharers, bool only_halves, uint32_t rows) {
  if (only_halves && rows > 2 && rows < 15) return rows < 5 ? 2 : 4;
  const bool tall = sharers == 1 && !only_halves && params.m > params.n;
  return std::min<uint32_t>(rows, tall ? kGroupTilesOfTall : kGroupRows / (kBlockM * sharers));
}

bool encode_result(CUtensorMap* map, const GemmProblem& problem, const Batch& batch, int block_n,
                   bool transposed) {
  const int columns = store_columns(block_n);
  MapShape shape{4,
                 {problem.n, problem.m, batch.extent[0], batch.extent[1]},
                 {1, problem.d_row_stride, batch.stride[0], batch.stride[1]},
                 {columns, 64, 1, 1},
                 columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B};
  if (transposed) {
    std::swap(shape.extent[0], shape.extent[1]);
    shape.stride[1] = problem.d_col_stride;
    shape.box[0] = 64, shape.box[1] = columns;
    shape.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  }
  return encode_tensor_map(map, problem.d, problem.dtype, shape);
}

// The walk over the tiles, for the number of CTAs that `config` has.
void plan_tiles(Params* params, const Config& config, const Batch& batch) {
  const int sharers = config.cluster / config.splits;
  const auto rows = static_cast<uint32_t>(ceil_div(params->m, kBlockM * sharers));
  const auto columns = static_cast<uint32_t>(ceil_div(params->n, config.block_n));
  const auto matrices = static_cast<uint32_t>(batch.extent[0] * batch.extent[1]);
  const uint32_t walkers = config.ctas / sharers;
  const uint32_t tiles = rows * columns * matrices;
  params->whole_tiles = config.splits > 1 ? tiles / walkers * walkers : tiles;
  params->end = params->whole_tiles + kPair * (tiles - params->whole_tiles);
  const uint32_t group_rows = rows_of_group(*params, sharers, params->whole_tiles == 0, rows);
  params->k_tiles = ceil_div(params->k, kBlockK);
  params->batched = matrices > 1;
  params->per_matrix = FastDivisor(rows * columns);
  params->batch_inner = FastDivisor(static_cast<uint32_t>(batch.extent[0]));
  params->group_tiles = FastDivisor(group_rows * columns);
  params->group_rows = FastDivisor(group_rows);
  params->last_group = (rows - 1) / group_rows;
  params->last_group_rows = FastDivisor(rows - params->last_group * group_rows);
  params->waves = params->whole_tiles / walkers;
  params->waves_rest = params->whole_tiles % walkers;
}

// Of A by its heads and, behind the first k-tile, as it lies.
bool encode_shifted(Params* params, const GemmProblem& given, const GemmProblem& of_residues,
                    void* heads) {
  const Batch none{{1, 1}, {0, 0}}, residues{{residues_of(given), 1}, {of_residues.m * kBlockK, 0}};
  GemmProblem part = of_residues;
  part.k = kBlockK;
  bool encoded = encode_operand(&params->a, part,
                                {heads, part.m, kBlockK, 1, residues, false, false, kBlockM, 1});
  for (int64_t i = 0; i < residues.extent[0]; ++i) {
    const int shift = shift_of(given, i);
    const auto* row = static_cast<const uint16_t*>(given.a.data) + i * given.a.row_stride;
    part.k = given.k + shift;
    encoded &=
        encode_operand(&params->a_of[i], part,
                       {row - shift, part.m, part.a.row_stride, 1, none, false, false, kBlockM, 1});
  }
  params->a_shifted = true;
  params->a_shift = shift_of(given, 0);
  params->a_shift_step = static_cast<int>(given.a.row_stride % kVector);
  return encoded;
}

}  // namespace

Status launch(const GemmProblem& given, const Config& config, void* workspace,
              cudaStream_t stream) {
  const GemmProblem whole = config.swapped ? swapped(given) : given;
  const GemmProblem problem = config.shifted ? by_residues(whole) : whole;
  const Batch a_batch = batch_of(problem, &BatchDim::a), b_batch = batch_of(problem, &BatchDim::b);
  const Batch d_batch = batch_of(problem, &BatchDim::d);
  Params params{};
  params.m = static_cast<int>(problem.m);
  params.n = static_cast<int>(problem.n);
  const int most_shift = config.shifted ? kVector - 1 : 0;
  params.k = static_cast<int>(problem.k) + most_shift;
  const OperandPolicies policies = operand_policies(problem, kMaxEvictFirstBytes);
  params.a_evict_first = policies.a == ptx::kEvictFirst;
  params.b_evict_first = policies.b == ptx::kEvictFirst;
  params.tma_store = config.tma_store;
  params.transposed = config.tma_store && !d_fits_tma(problem);
  params.d_data = problem.d;
  params.d_row_stride = problem.d_row_stride;
  params.d_col_stride = problem.d_col_stride;
  for (int i = 0; i < 2; ++i) {
    params.a_batched[i] = a_batch.stride[i] != 0;
    params.b_batched[i] = b_batch.stride[i] != 0;
    params.d_batch_stride[i] = d_batch.stride[i];
  }
  params.bias = problem.bias;
  (config.swapped ? params.bias_row_stride : params.bias_col_stride) = problem.bias_stride;
  params.activation = problem.activation;
  params.plain_end = params.bias == nullptr && params.activation == Activation::kNone;
  params.pair = config.cluster > 1;
  params.shares_b = config.cluster > config.splits;
  plan_tiles(&params, config, d_batch);
  const bool a_mn = !a_k_major(problem), b_mn = !b_k_major(problem);
  params.a_chunked = a_mn && problem.m % kSwizzleElements == 0;
  params.b_chunked = b_mn && problem.n % kSwizzleElements == 0;
  bool encoded =
      config.shifted
          ? encode_shifted(&params, whole, problem, workspace)
          : encode_operand(&params.a, problem,
                           {problem.a.data, problem.m, problem.a.row_stride, problem.a.col_stride,
                            a_batch, a_mn, params.a_chunked, kBlockM, 1});
  encoded &= encode_operand(
      &params.b, problem,
      {problem.b.data, problem.n, problem.b.col_stride, problem.b.row_stride, b_batch, b_mn,
       params.b_chunked, config.block_n, config.cluster / config.splits});
  if (config.tma_store) {
    encoded &= encode_result(&params.d, problem, d_batch, config.block_n, params.transposed);
  }
  if (!encoded) return {cudaErrorInvalidValue, "encoding a tensor map of the sm_90a GEMM"};
  if (config.shifted) {
    const Status copied = copy_heads(whole, static_cast<uint16_t*>(workspace), stream);
    if (!copied.ok()) return copied;
  }
  const auto run = problem.dtype == DType::kF16 ? launch_f16 : launch_bf16;
  return run(params, config, a_mn, b_mn, stream);
}

}  // namespace xgemm::cuda::gemm::sm90::persistent
