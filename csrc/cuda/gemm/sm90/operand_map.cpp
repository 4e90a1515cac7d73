#include "cuda/gemm/sm90/operand_map.h"

#include "cuda/gemm/sm90/operand.h"

namespace xgemm::cuda::gemm::sm90 {

bool encode_operand(CUtensorMap* map, const GemmProblem& problem, const Loads& o) {
  MapShape shape{};
  if (!o.mn_major) {
    shape = {5, {problem.k, o.mn, 1}, {1, o.mn_stride, 0}, {kBlockK, o.rows / o.sharers, 1, 1, 1}};
  } else if (o.chunked) {
    shape = {5,
             {kSwizzleElements, problem.k, o.mn / kSwizzleElements},
             {1, o.k_stride, kSwizzleElements},
             {kSwizzleElements, kBlockK, chunks_per_load(o.rows, o.sharers), 1, 1}};
  } else {
    shape = {5, {o.mn, problem.k, 1}, {1, o.k_stride, 0}, {kSwizzleElements, kBlockK, 1, 1, 1}};
  }
  for (int i = 0; i < 2; ++i) {
    shape.extent[3 + i] = o.batch.stride[i] != 0 ? o.batch.extent[i] : 1;
    shape.stride[3 + i] = o.batch.stride[i];
  }
  return encode_tensor_map(map, o.data, problem.dtype, shape);
}

Batch batch_of(const GemmProblem& problem, int64_t BatchDim::* stride) {
  Batch batch{{1, 1}, {0, 0}};
  for (int i = 0; i < problem.batch_dims; ++i) {
    const BatchDim& dim = problem.batch[problem.batch_dims - 1 - i];
    batch.extent[i] = dim.size;
    batch.stride[i] = dim.*stride;
  }
  return batch;
}

}  // namespace xgemm::cuda::gemm::sm90
