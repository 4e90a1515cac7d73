// What launches of the kernels that TMA feeds need, and nvcc is not needed for.
#include "cuda/gemm/fp32/sm90/launch.h"

#include <algorithm>

#include "common/current_device.h"
#include "common/math.h"
#include "cuda/gemm/sm90/tensor_map.h"

namespace xgemm::cuda::gemm::fp32::sm90 {
namespace {

// An operand of [rows, k].
struct OperandShape {
  int64_t rows, k, batches, batch_stride;
};

bool encode(TmaOperand* to, const OperandParams& x, const OperandShape& shape, bool round_to_tf32) {
  to->batched = shape.batch_stride != 0;
  const int64_t batches = to->batched ? shape.batches : 1;
  gemm::sm90::MapShape map{.dims = 3,
                           .extent = {shape.rows, shape.k, batches},
                           .stride = {1, x.k_stride, shape.batch_stride},
                           .box = {32, kDepth, 1},
                           .round_to_tf32 = round_to_tf32};
  if (to->along_k) {
    map.extent[0] = shape.k, map.extent[1] = shape.rows;
    map.stride[1] = x.row_stride;
  }
  return gemm::sm90::encode_tensor_map(&to->map, x.data, DType::kF32, map);
}

}  // namespace

bool encode_operands(TmaParams* params, bool round_to_tf32) {
  const Params& p = params->problem;
  const BatchDim batch = p.batch_dims > 0 ? p.batch[0] : BatchDim{1, 0, 0, 0, 0};
  return encode(&params->a, p.a, {p.m, p.k, batch.size, batch.a}, round_to_tf32) &&
         encode(&params->b, p.b, {p.n, p.k, batch.size, batch.b}, round_to_tf32);
}

int spread_bytes(int bytes, int ctas_per_sm, int ctas) {
  const int per_sm = ceil_div(ctas, std::max(current_device().sm_count, 1));
  return per_sm >= ctas_per_sm ? bytes : std::max(bytes, kSmemOfSm / (per_sm + 1));
}

}  // namespace xgemm::cuda::gemm::fp32::sm90
