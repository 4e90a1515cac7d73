#include <cudaTypedefs.h>

#include <algorithm>

#include "cuda/gemm/sm90/launch.h"
#include "cuda/gemm/sm90/params.h"

namespace xgemm::cuda::gemm::sm90 {
namespace {

// Neighbouring tiles run over this many rows of D before the next columns (measured: 1024 to 4096
// make no difference beyond noise).
constexpr int kGroupRows = 2048;

// cuTensorMapEncodeTiled, got from the driver at run time so that nothing links libcuda.
PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto kEncode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                     &found);
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return kEncode;
}

struct MapShape {
  int64_t inner, outer, batch;  // elements
  int64_t outer_stride, batch_stride;
  int box_inner, box_outer;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
};

bool encode(CUtensorMap* map, const void* data, DType dtype, const MapShape& shape) {
  const auto type =
      dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(shape.inner),
                               static_cast<cuuint64_t>(shape.outer),
                               static_cast<cuuint64_t>(shape.batch)};
  // A stride along an extent of 1 is never used, but must still be a valid one.
  const auto bytes = [](int64_t stride) {
    return static_cast<cuuint64_t>(std::max<int64_t>(stride, 8) * 2);
  };
  const cuuint64_t strides[2] = {bytes(shape.outer > 1 ? shape.outer_stride : 8),
                                 bytes(shape.batch > 1 ? shape.batch_stride : 8)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(shape.box_inner),
                             static_cast<cuuint32_t>(shape.box_outer), 1};
  const cuuint32_t element_strides[3] = {1, 1, 1};
  const auto encoder = tensor_map_encoder();
  return encoder != nullptr &&
         encoder(map, type, 3, const_cast<void*>(data), sizes, strides, box, element_strides,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, shape.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// The map of an operand whose MN extent is `mn`, with strides `mn_stride` and `k_stride` (one of
// them 1), for loads of `rows` by `sharers` CTAs.
bool encode_operand(CUtensorMap* map, const Problem& problem, const void* data, int64_t mn,
                    int64_t mn_stride, int64_t k_stride, bool mn_major, int64_t batch,
                    int64_t batch_stride, int rows, int sharers) {
  MapShape shape{};
  shape.batch = batch;
  shape.batch_stride = batch_stride;
  shape.box_inner = kSwizzleElements;
  if (mn_major) {
    shape.inner = mn, shape.outer = problem.k, shape.outer_stride = k_stride;
    shape.box_outer = kBlockK / sharers;
  } else {
    shape.inner = problem.k, shape.outer = mn, shape.outer_stride = mn_stride;
    shape.box_outer = rows / sharers;
  }
  return encode(map, data, problem.dtype, shape);
}

// True where an operand's rows along K suit TMA.
bool k_major(int64_t k_stride, int64_t mn_stride, int64_t mn) {
  return k_stride == 1 && (mn <= 1 || (mn_stride % 8 == 0 && mn_stride > 0));
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
  // An extent of 1 leaves both readings open; the one that TMA can take was found by select_config.
  const bool a_mn = !k_major(problem.a.col_stride, problem.a.row_stride, problem.m);
  const bool b_mn = !k_major(problem.b.row_stride, problem.b.col_stride, problem.n);
  bool encoded = encode_operand(&params.a, problem, problem.a.data, problem.m, problem.a.row_stride,
                                problem.a.col_stride, a_mn, params.a_batched ? batch.size : 1,
                                batch.a, config.block_m, 1);
  encoded &= encode_operand(&params.b, problem, problem.b.data, problem.n, problem.b.col_stride,
                            problem.b.row_stride, b_mn, params.b_batched ? batch.size : 1, batch.b,
                            config.block_n, config.cluster);
  if (config.tma_store) {
    const int columns = store_columns(config.block_n);
    encoded &= encode(&params.d, problem.d, problem.dtype,
                      {problem.n, problem.m, batch.size, problem.d_row_stride, batch.d, columns, 64,
                       columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B});
  }
  if (!encoded) return {cudaErrorInvalidValue, "encoding a tensor map of the sm_90a GEMM"};
  const auto run = problem.dtype == DType::kF16 ? launch_f16 : launch_bf16;
  return run(params, config, a_mn, b_mn, stream);
}

}  // namespace xgemm::cuda::gemm::sm90
