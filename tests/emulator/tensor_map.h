// Bulk tensor copies. Coordinates count elements, the contiguous dimension first.
#pragma once

#include <cuda.h>

#include <initializer_list>

#include "emulator/engine.h"

namespace xgemm::emulator {

using Coordinates = std::initializer_list<int>;

void check_tensor_map(const CUtensorMap* map);
// To `dst`, and counted by `barrier`, in every block of `cta_mask`; 0 means this block.
void tma_load(void* dst, const CUtensorMap* map, uint64_t* barrier, Coordinates at,
              uint32_t cta_mask = 0);
void tma_store(const CUtensorMap* map, const void* src, Coordinates at);

// Stands in for the driver's cuTensorMapEncodeTiled, and refuses what the driver refuses.
CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                      CUtensorMapFloatOOBfill fill);

}  // namespace xgemm::emulator
