// A mixture of experts with fp32 activations: the general path, on CUDA cores.
#include "cuda/launch.h"
#include "cuda/shared_memory.h"
#include "cuda/w4a16/dequant.cuh"
#include "cuda/w4a16/dequant_fp4.cuh"
#include "cuda/w4a16/grouped/instances.h"
#include "cuda/w4a16/grouped/rows.cuh"

namespace xgemm::cuda::w4a16::grouped {
namespace {

constexpr int kBlockM = 8, kColumns = 64, kBlockK = 128, kSimtThreads = 128;
constexpr int kRowsEach = kBlockM * kColumns / kSimtThreads;

template <bool kFp4>
__device__ float weight_at(const Params& p, const w4::Layout& layout, const uint8_t* expert,
                           int64_t column, int64_t channel) {
  const int64_t nibble = layout.nibble_index(column, channel);
  const int code = expert[nibble / 2] >> (nibble % 2 * 4) & 15;
  const int64_t group = layout.per_channel() ? 0 : channel / layout.group_size;
  const auto bits = [&](int64_t offset) {
    return *reinterpret_cast<const uint16_t*>(expert + offset);
  };
  const float scale =
      scale_to_float(bits(layout.scale_offset(column, group)), p.format.bf16_scales);
  if constexpr (kFp4) {
    const auto bits_of_code = static_cast<uint16_t>((code & 8) << 12 | (code & 7) << 9);
    return half_bits_to_float(bits_of_code) * kFp4Unit<__half> * scale;
  }
  const float zero = layout.zeros ? half_bits_to_float(bits(layout.zero_offset(column, group)))
                                  : static_cast<float>(w4::kSymmetricZero);
  return (static_cast<float>(code) - zero) * scale;
}

// A thread has a column of y and kRowsEach rows; X is staged 128 channels at a time.
template <bool kFp4>
__global__ void __launch_bounds__(kSimtThreads)
    simt_kernel(const __grid_constant__ Params p, const __grid_constant__ w4::Layout layout) {
  using XTile = float[kBlockM][kBlockK];
  XGEMM_STATIC_SHARED(XTile, x_tile);
  const int thread = threadIdx.x;
  const RowRange rows =
      find_rows(p.sorted, p.experts, p.slots, kBlockM, blockIdx.x / p.column_blocks, thread % 32);
  if (rows.count == 0) return;
  const int64_t column = int64_t{blockIdx.x % p.column_blocks} * kColumns + thread % kColumns;
  const int first_row = thread / kColumns * kRowsEach;
  const bool none = rows.expert == p.experts;
  const int expert = none ? 0 : rows.expert;
  const uint8_t* weight = p.weight + expert * p.expert_bytes;
  float gate[kRowsEach] = {}, up[kRowsEach] = {};
  for (int k0 = 0; k0 < p.k && !none; k0 += kBlockK) {
    __syncthreads();  // the tile before was read
    for (int i = thread; i < kBlockM * kBlockK; i += kSimtThreads) {
      const int row = i / kBlockK, k = k0 + i % kBlockK;
      const int slot =
          row < rows.count ? slot_at(p.sorted, p.experts, p.slots, rows.begin + row) : -1;
      int64_t channel = k < p.k ? k : -1;
      if (p.perm != nullptr && channel >= 0) channel = p.perm[int64_t{expert} * p.k + k];
      const bool exists = slot >= 0 && channel >= 0 && channel < p.k;
      const int64_t at = int64_t{slot / p.row_divisor} * p.x_row_stride + channel;
      x_tile[row][i % kBlockK] = exists ? static_cast<const float*>(p.x)[at] : 0.0f;
    }
    __syncthreads();
    if (column >= p.columns) continue;
    for (int i = 0; i < min(kBlockK, p.k - k0); ++i) {
      const float w = weight_at<kFp4>(p, layout, weight, column, k0 + i);
      const float v =
          p.gated ? weight_at<kFp4>(p, layout, weight, p.columns + column, k0 + i) : 0.0f;
#pragma unroll
      for (int r = 0; r < kRowsEach; ++r) {
        gate[r] += w * x_tile[first_row + r][i];
        if (p.gated) up[r] += v * x_tile[first_row + r][i];
      }
    }
  }
  if (column >= p.columns) return;
  const auto* bias = static_cast<const float*>(p.bias);
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    if (first_row + r >= rows.count) continue;
    const int slot = slot_at(p.sorted, p.experts, p.slots, rows.begin + first_row + r);
    if (slot < 0) continue;
    float y = gate[r], other = up[r];
    if (bias != nullptr && !none) {
      y += bias[expert * p.n + column];
      if (p.gated) other += bias[expert * p.n + p.columns + column];
    }
    y = activate(p.activation, y);
    if (p.gated) y *= other;
    static_cast<float*>(p.y)[slot * p.columns + column] = none ? 0.0f : y;
  }
}

}  // namespace

Status launch_f32(const Params& params, const w4::Layout& layout, bool fp4, int64_t tiles,
                  cudaStream_t stream) {
  const Grid grid{.blocks = dim3(static_cast<unsigned>(tiles * params.column_blocks)),
                  .threads = dim3(kSimtThreads),
                  .stream = stream};
  const auto kernel = fp4 ? simt_kernel<true> : simt_kernel<false>;
  return launch_grid("the fp32 kernel for experts", grid, kernel, params, layout);
}

}  // namespace xgemm::cuda::w4a16::grouped
