// The order in which rungs 3 and on read the weights, made once.
//
// A word is the 16 columns x 16 k of an mma that a lane holds: registers 0 and 2 have columns lane
// / 4, registers 1 and 3 have lane / 4 + 8. Nibbles i and i + 4 are register i, so that
// dequantize() gives the fragment itself. Words lie as
//
//   codes   [k / 32][n / 64][2 halves of a lane's 8 k][32 lanes][4 times 16 columns]
//   scales  [k / 128][n / 64][8: lane / 4][4 times 16 columns][2: lane / 4, lane / 4 + 8]
//
// so the 16 bytes of a lane are four fragments, a warp's load is 512 contiguous bytes, and a lane's
// eight scales are one load of 16 bytes.
#pragma once

#include "cuda/ladder/w4a16/common.cuh"

namespace xgemm::cuda::ladder::w4a16 {

inline constexpr int kPackThreads = 256, kPackScaleThreads = 64;

// A thread makes a word.
__global__ void __launch_bounds__(kPackThreads)
    pack_codes_kernel(const uint32_t* codes, int n, uint32_t* packed) {
  const auto index = static_cast<int>(blockIdx.x * kPackThreads + threadIdx.x);
  const int fragment = index % 4, lane = index / 4 % 32, half = index / 128 % 2;
  const int columns = index / 256 % (n / 64), k = index / 256 / (n / 64);  // 64 and 32 of them
  const int column = columns * 64 + fragment * 16 + lane / 4, word = k * 4 + lane % 4;
  uint32_t out = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t all = codes[int64_t{word} * n + column + i % 2 * 8];
    const uint32_t pair = all >> (half * 16 + i / 2 * 8) & 0xff;  // two k
    out |= (pair & 15) << 4 * i | pair >> 4 << (4 * i + 16);
  }
  packed[index] = out;
}

// A thread moves a scale.
__global__ void __launch_bounds__(kPackScaleThreads)
    pack_scales_kernel(const __half* scales, int n, __half* packed) {
  const auto index = static_cast<int>(blockIdx.x * kPackScaleThreads + threadIdx.x);
  const int high = index % 2, fragment = index / 2 % 4, lane = index / 8 % 8;
  const int columns = index / 64 % (n / 64), group = index / n;
  packed[index] = scales[int64_t{group} * n + columns * 64 + fragment * 16 + high * 8 + lane];
}

inline Status pack(const PackedWeights& weights) {
  const int64_t words = int64_t{weights.n} * weights.k / 8;
  const int64_t scales = int64_t{weights.n} * weights.k / kGroup;
  Grid grid{.blocks = static_cast<unsigned>(words / kPackThreads),
            .threads = kPackThreads,
            .stream = weights.stream};
  const Status status = launch_grid("ladder w4a16: packing codes", grid, pack_codes_kernel,
                                    weights.codes, weights.n, weights.packed_codes);
  if (!status.ok()) return status;
  grid.blocks = static_cast<unsigned>(scales / kPackScaleThreads);
  grid.threads = kPackScaleThreads;
  return launch_grid("ladder w4a16: packing scales", grid, pack_scales_kernel,
                     static_cast<const __half*>(weights.scales), weights.n,
                     static_cast<__half*>(weights.packed_scales));
}

// What a lane needs for 32 k of the warp's 64 columns.
template <int kRows>
struct Fragments {
  alignas(16) uint32_t words[2][4];  // of its 8 k the first 4, and the last 4
  alignas(16) __half scales[8];      // of columns lane / 4 and lane / 4 + 8, four times
  RowFragments<kRows> rows;

  // codes: [2][32], from: [8]; in global or in shared memory.
  __device__ void load_weights(const uint4* codes, const uint4* from, int lane) {
    *reinterpret_cast<uint4*>(words[0]) = codes[lane];
    *reinterpret_cast<uint4*>(words[1]) = codes[lane + 32];
    *reinterpret_cast<uint4*>(scales) = from[lane / 4];
  }

  __device__ void multiply_to(Sums<kRows>& sums) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = twice(scales[2 * i]), high = twice(scales[2 * i + 1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t w[4];
        dequantize(words[half][i], w);
#pragma unroll
        for (int j = 0; j < 4; ++j) w[j] = scaled(w[j], j % 2 == 0 ? low : high);
        multiply<kRows>(sums[i], w, rows, half);
      }
    }
  }
};

}  // namespace xgemm::cuda::ladder::w4a16
