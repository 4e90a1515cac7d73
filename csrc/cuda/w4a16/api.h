// 4-bit weights on CUDA, over the layout of w4/packed_layout.h: products, packing and unpacking.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/status.h"
#include "cuda/w4a16/choice.h"
#include "cuda/w4a16/grouped/api.h"
#include "cuda/w4a16/problem.h"
#include "w4/packed_layout.h"

namespace xgemm::cuda {
namespace w4a16 {

// On the current device, which holds all operands. `choice` is select_config's for this problem;
// `workspace` has choice.workspace_bytes bytes, aligned to 256, with any contents.
Status launch(const Problem& problem, const Choice& choice, void* workspace, cudaStream_t stream);

// dst[i, j] = w(column + i, channel + j), rounded once to `dtype`, for i < columns, j < channels.
struct Dequantize {
  Weight weight;
  int64_t column = 0, channel = 0;  // multiples of 64 and of 128
  int64_t columns = 0, channels = 0;
  void* dst = nullptr;
  int64_t dst_row_stride = 0;  // elements; columns of dst are neighbours
  DType dtype = DType::kF16;   // fp16, bf16 or fp32
  bool fp4 = false;            // codes are E2M1, without zeros
};
Status dequantize(const Dequantize& part, cudaStream_t stream);

// dst[i, j] = src[i, from[j]], or src[i, j] where `from` is null; 0 where i, j or the source's
// column is outside of src. Elements of 2 or 4 bytes, strides in elements.
struct Gather {
  int64_t rows = 0, cols = 0;          // of dst
  int64_t src_rows = 0, src_cols = 0;  // that there are
  int64_t item_size = 2;
  const void* src = nullptr;
  int64_t src_row_stride = 0, src_col_stride = 1;
  void* dst = nullptr;
  int64_t dst_row_stride = 0, dst_col_stride = 1;
  const int32_t* from = nullptr;  // [src_cols]
};
Status gather_columns(const Gather& gather, cudaStream_t stream);

// inverse[perm[j]] = j for j in [0, k); -1 for a channel that perm leaves out.
Status invert_permutation(const int32_t* perm, int64_t k, int32_t* inverse, cudaStream_t stream);

}  // namespace w4a16

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
