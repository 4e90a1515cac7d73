// A copy of an operand that a kernel cannot read as it lies, without CUDA.
#pragma once

#include <cstdint>

namespace xgemm::cuda::gemm::fp32 {

// A batch of [outer, inner] matrices; strides in elements.
struct Copy {
  const float* src;
  int64_t outer, inner, outer_stride, inner_stride;
  int64_t batches, batch_stride;
  float* dst;          // [batches][outer][dst_stride]; what pads a row is not written
  int64_t dst_stride;  // copy_stride(inner)
};

// Rows begin with a line of the L2 cache, unless they are short: TMA boxes that do not read a
// quarter more of its sectors.
constexpr int64_t copy_stride(int64_t inner) {
  const int64_t unit = inner < 256 ? 4 : 32;
  return (inner + unit - 1) / unit * unit;
}
constexpr int64_t copy_bytes(int64_t batches, int64_t outer, int64_t inner) {
  return (batches * outer * copy_stride(inner) * 4 + 255) / 256 * 256;
}
inline int64_t copy_bytes(const Copy& copy) {
  return copy_bytes(copy.batches, copy.outer, copy.inner);
}
// At least its CTAs, which must be fewer than 2^31.
constexpr int64_t copy_tiles(int64_t batches, int64_t outer, int64_t inner) {
  return (inner + 31) / 32 * ((outer + 31) / 32) * batches;
}

}  // namespace xgemm::cuda::gemm::fp32
