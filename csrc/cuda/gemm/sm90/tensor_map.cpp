#include "cuda/gemm/sm90/tensor_map.h"

#include "cuda/tensor_map_encoder.h"

namespace xgemm::cuda::gemm::sm90 {

bool encode_tensor_map(CUtensorMap* map, const void* data, DType dtype, const MapShape& shape) {
  const auto type = dtype == DType::kF16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                    : dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                    : shape.round_to_tf32   ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                            : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  cuuint64_t extent[kMaxMapDims], stride[kMaxMapDims];
  cuuint32_t box[kMaxMapDims], steps[kMaxMapDims];
  for (int i = 0; i < shape.dims; ++i) {
    extent[i] = static_cast<cuuint64_t>(shape.extent[i]);
    // A stride along an extent of 1 is never used, but must still be a valid one.
    stride[i] =
        static_cast<cuuint64_t>(shape.extent[i] > 1 ? shape.stride[i] * element_size(dtype) : 16);
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
    steps[i] = 1;
  }
  const auto encoder = tensor_map_encoder();
  return encoder != nullptr &&
         encoder(map, type, shape.dims, const_cast<void*>(data), extent, stride + 1, box, steps,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, shape.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace xgemm::cuda::gemm::sm90
