// Tensor maps: what TMA is told about a matrix in global memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "common/dtype.h"

namespace xgemm::cuda::gemm::sm90 {

inline constexpr int kMaxMapDims = 5;

// Dimension 0 is contiguous; strides in elements.
struct MapShape {
  int dims;
  int64_t extent[kMaxMapDims], stride[kMaxMapDims];
  int box[kMaxMapDims];
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  bool round_to_tf32 = false;  // loads round fp32 to the nearest TF32
};

// False where the driver refuses. Loads beyond an extent give 0, stores there write nothing.
bool encode_tensor_map(CUtensorMap* map, const void* data, DType dtype, const MapShape& shape);

}  // namespace xgemm::cuda::gemm::sm90
