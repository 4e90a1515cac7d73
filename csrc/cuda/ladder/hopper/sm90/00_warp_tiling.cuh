// Ladder hopper, rung 0: warp tiles, without tensor cores.
//
// Source:    Pranjal Shankhdhar, "Outperforming cuBLAS on H100: a Worklog", kernel 1; that one is
//            rung 6 of the sgemm ladder (Boehm's kernel 10) for bf16.
// Changed:   the first rung. A block of 128 threads makes 128 x 128 of C by FMAs in fp32.
// Published: 32 TFLOP/s on an H100.
//
// Tiles of A and B are converted to fp32 on their way to shared memory and lie there transposed, 16
// k of 128 rows. Each warp makes 64 x 64 of C and each thread 16 x 8: for a step of k it reads 24
// elements and does 128 FMAs. Both tiles and fragments are double-buffered.
//
// What is wrong with it. An SM does 128 FMAs a cycle in fp32, and its tensor cores 2048 in bf16. No
// order of loads changes that.
#pragma once

#include "cuda/ladder/hopper/sm90/common.cuh"

namespace xgemm::cuda::ladder::hopper::rung0 {

inline constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 16;
inline constexpr int kWarpM = 64, kWarpN = 64, kThreads = 128;  // 2 x 2 warps
inline constexpr int kThreadM = 16, kThreadN = 8;  // of C, a thread: 4 x 2 blocks of 4 x 4
inline constexpr int kStepM = 16, kStepN = 32;     // from one of them to the next

struct Matrices {
  const Element *a, *b;  // [m, k], [n, k]
  Element* c;            // [m, n]
  int m, n, k;
};

struct Tiles {
  alignas(16) float a[kBlockK][kBlockM], b[kBlockK][kBlockN];  // transposed
};

// What a thread carries from global to shared memory: a row of each tile.
struct Carried {
  uint4 a[2], b[2];

  __device__ void load(const Matrices& x, int tid, int k0) {
    const int64_t row_a = static_cast<int>(blockIdx.y) * kBlockM + tid;
    const int64_t row_b = static_cast<int>(blockIdx.x) * kBlockN + tid;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      a[half] = *reinterpret_cast<const uint4*>(x.a + row_a * x.k + k0 + half * 8);
      b[half] = *reinterpret_cast<const uint4*>(x.b + row_b * x.k + k0 + half * 8);
    }
  }
  __device__ static void spread(float (&tile)[kBlockK][128], const uint4 (&row)[2], int tid) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pairs[] = {row[half].x, row[half].y, row[half].z, row[half].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // a bf16 is the upper half of a float
        tile[half * 8 + i * 2][tid] = __uint_as_float(pairs[i] << 16);
        tile[half * 8 + i * 2 + 1][tid] = __uint_as_float(pairs[i] & 0xffff0000u);
      }
    }
  }
  __device__ void store(Tiles& tiles, int tid) const {
    spread(tiles.a, a, tid);
    spread(tiles.b, b, tid);
  }
};

// The elements that a thread multiplies in one step of k.
struct Fragments {
  float4 a[kThreadM / 4], b[kThreadN / 4];

  __device__ void load(const Tiles& tiles, int k, int row, int column) {
#pragma unroll
    for (int i = 0; i < kThreadM / 4; ++i) {
      a[i] = *reinterpret_cast<const float4*>(&tiles.a[k][row + i * kStepM]);
    }
#pragma unroll
    for (int j = 0; j < kThreadN / 4; ++j) {
      b[j] = *reinterpret_cast<const float4*>(&tiles.b[k][column + j * kStepN]);
    }
  }
};

using Sums = float[kThreadM][kThreadN];

__device__ inline void multiply(Sums& sums, const Fragments& x) {
#pragma unroll
  for (int i = 0; i < kThreadM / 4; ++i) {
    const float a[] = {x.a[i].x, x.a[i].y, x.a[i].z, x.a[i].w};
#pragma unroll
    for (int row = 0; row < 4; ++row) {
#pragma unroll
      for (int j = 0; j < kThreadN / 4; ++j) {
        const float b[] = {x.b[j].x, x.b[j].y, x.b[j].z, x.b[j].w};
#pragma unroll
        for (int column = 0; column < 4; ++column) {
          sums[i * 4 + row][j * 4 + column] += a[row] * b[column];
        }
      }
    }
  }
}

// Four neighbours, 8 bytes, at a time.
__device__ inline void store(const Matrices& x, const Sums& sums, int row, int column) {
  Element* c = x.c + int64_t{static_cast<int>(blockIdx.y) * kBlockM + row} * x.n;
  c += static_cast<int>(blockIdx.x) * kBlockN + column;
#pragma unroll
  for (int i = 0; i < kThreadM; ++i) {
#pragma unroll
    for (int j = 0; j < kThreadN; j += 4) {
      const float* s = &sums[i][j];
      alignas(8) const __nv_bfloat162 four[2] = {__floats2bfloat162_rn(s[0], s[1]),
                                                 __floats2bfloat162_rn(s[2], s[3])};
      *reinterpret_cast<uint2*>(c + int64_t{i / 4 * kStepM + i % 4} * x.n + j / 4 * kStepN) =
          *reinterpret_cast<const uint2*>(four);
    }
  }
}

__global__ void __launch_bounds__(kThreads) gemm_kernel(Matrices x) {
  using Pair = Tiles[2];
  XGEMM_STATIC_SHARED(Pair, tiles);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  const int row = warp / 2 * kWarpM + lane / 8 * 4, column = warp % 2 * kWarpN + lane % 8 * 4;
  Sums sums = {};
  Carried carried;
  Fragments fragments[2];
  carried.load(x, tid, 0);
  carried.store(tiles[0], tid);
  __syncthreads();
  fragments[0].load(tiles[0], 0, row, column);
  for (int k0 = 0; k0 < x.k; k0 += kBlockK) {
    const int stage = k0 / kBlockK % 2;
    const bool more = k0 + kBlockK < x.k;
    if (more) carried.load(x, tid, k0 + kBlockK);  // on its way while this tile is multiplied
#pragma unroll
    for (int k = 0; k < kBlockK; ++k) {
      if (k + 1 < kBlockK) {
        fragments[(k + 1) % 2].load(tiles[stage], k + 1, row, column);
      } else if (more) {
        carried.store(tiles[stage ^ 1], tid);
        __syncthreads();
        fragments[0].load(tiles[stage ^ 1], 0, row, column);
      }
      multiply(sums, fragments[k % 2]);
    }
  }
  store(x, sums, row, column);
}

inline Status run(const Product& product) {
  const Matrices x = {static_cast<const Element*>(product.a),
                      static_cast<const Element*>(product.b),
                      static_cast<Element*>(product.c),
                      product.m,
                      product.n,
                      product.k};
  const dim3 blocks(static_cast<unsigned>(product.n / kBlockN),
                    static_cast<unsigned>(product.m / kBlockM));
  const Grid grid{.blocks = blocks, .threads = kThreads, .stream = product.stream};
  return launch_grid("ladder hopper: rung 0", grid, gemm_kernel, x);
}

}  // namespace xgemm::cuda::ladder::hopper::rung0
