// 4-bit weights on CUDA: packing and unpacking over the layout of w4/packed_layout.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/status.h"
#include "w4/packed_layout.h"

namespace xgemm::cuda {

// Canonical tensors of a weight, contiguous, on the device.
struct W4Canonical {
  const uint8_t* codes;    // [n, k]
  const uint16_t* scales;  // [groups, n], fp16 or bf16
  const uint16_t* zeros;   // [groups, n] fp16, or null
};

// First offending position of each tensor, or kNoFault: a code above 15, a scale or a zero that is
// not finite. `faults` is device memory of three values; the caller copies it back.
inline constexpr unsigned long long kNoFault = ~0ull;
Status w4_find_faults(const w4::Layout& layout, const W4Canonical& weight, bool bf16_scales,
                      unsigned long long* faults, cudaStream_t stream);

// Writes every byte of `packed`, padding included.
Status w4_pack(const w4::Layout& layout, const W4Canonical& weight, uint8_t* packed,
               cudaStream_t stream);
// zeros may be null where the layout has none.
Status w4_unpack(const w4::Layout& layout, const uint8_t* packed, uint8_t* codes, uint16_t* scales,
                 uint16_t* zeros, cudaStream_t stream);

}  // namespace xgemm::cuda
