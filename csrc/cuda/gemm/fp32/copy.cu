#include <cstdlib>

#include "common/math.h"
#include "cuda/gemm/fp32/copy.h"
#include "cuda/launch.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::fp32 {
namespace {

// A block copies 128 elements of the dimension that is contiguous in the source, of 32 of the
// other. Each thread has 16 elements, all in flight at once: 4 neighbours of a warp's width in
// each of 4 lines.
constexpr int kThreads = 256, kWarps = kThreads / 32, kLines = 32, kLength = 128;
constexpr int kLinesOfWarp = kLines / kWarps, kOfLane = kLength / 32;

// A batch of [outer, inner] matrices; strides in elements.
struct Copy {
  const float* src;
  int64_t outer, inner, outer_stride, inner_stride;
  int64_t batches, batch_stride;
  float* dst;  // [batches][outer][dst_stride]; what pads a row is not written
  int64_t dst_stride;
};

struct CopyParams {
  Copy copy;
  uint32_t tiles_inner, tiles_outer;
  bool along_inner;  // the source is contiguous along the same dimension as the copy
};

struct AllParams {
  CopyParams copies[align::kMaxCopies];
  uint32_t blocks_of_first;
};

struct TransposeTile {
  float at[kLength][kLines + 1];  // [outer][inner]
};

// A thread's elements: where they lie along the contiguous dimension, and which of them exist.
struct Lines {
  const float* first;
  int64_t step, line_step;  // from an element to the next, from a line to the next
  int64_t left, lines_left;

  __device__ void load(float (&x)[kLinesOfWarp][kOfLane]) const {
#pragma unroll
    for (int line = 0; line < kLinesOfWarp; ++line) {
      const float* from = first + line * line_step;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        if (line < lines_left && i * 32 < left) x[line][i] = __ldg(from);
        from += step;
      }
    }
  }
};

template <bool kAlongInner>
__device__ void copy_tile(const CopyParams& params, uint32_t block, TransposeTile& tile) {
  const Copy& copy = params.copy;
  const uint32_t plane = block / params.tiles_inner, batch = plane / params.tiles_outer;
  const int64_t inner0 =
      int64_t{block - plane * params.tiles_inner} * (kAlongInner ? kLength : kLines);
  const int64_t outer0 =
      int64_t{plane - batch * params.tiles_outer} * (kAlongInner ? kLines : kLength);
  const int lane = threadIdx.x % 32, line = threadIdx.x / 32 * kLinesOfWarp;
  const int64_t outer = outer0 + (kAlongInner ? line : lane);
  const int64_t inner = inner0 + (kAlongInner ? lane : line);
  const float* first =
      copy.src + batch * copy.batch_stride + outer * copy.outer_stride + inner * copy.inner_stride;
  float* dst = copy.dst + (batch * copy.outer + outer0) * copy.dst_stride + inner0;
  float x[kLinesOfWarp][kOfLane];
  if constexpr (kAlongInner) {
    Lines{first, 32 * copy.inner_stride, copy.outer_stride, copy.inner - inner, copy.outer - outer}
        .load(x);
#pragma unroll
    for (int i = 0; i < kLinesOfWarp; ++i) {
#pragma unroll
      for (int j = 0; j < kOfLane; ++j) {
        if (outer + i < copy.outer && inner + j * 32 < copy.inner) {
          dst[(line + i) * copy.dst_stride + lane + j * 32] = x[i][j];
        }
      }
    }
  } else {
    Lines{first, 32 * copy.outer_stride, copy.inner_stride, copy.outer - outer, copy.inner - inner}
        .load(x);
#pragma unroll
    for (int i = 0; i < kLinesOfWarp; ++i) {
#pragma unroll
      for (int j = 0; j < kOfLane; ++j) tile.at[lane + j * 32][line + i] = x[i][j];
    }
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.x / 32; i < kLength; i += kWarps) {
      if (outer0 + i < copy.outer && inner0 + lane < copy.inner) {
        dst[i * copy.dst_stride + lane] = tile.at[i][lane];
      }
    }
  }
}

// Blocks of the first copy, then of the second.
__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ AllParams params) {
  XGEMM_STATIC_SHARED(TransposeTile, tile);
  const bool second = blockIdx.x >= params.blocks_of_first;
  const CopyParams& mine = params.copies[second ? 1 : 0];
  const uint32_t block = blockIdx.x - (second ? params.blocks_of_first : 0);
  if (mine.along_inner) {
    copy_tile<true>(mine, block, tile);
  } else {
    copy_tile<false>(mine, block, tile);
  }
}

int64_t make_params(const align::AlignedCopy& given, CopyParams* params) {
  const Copy copy{.src = static_cast<const float*>(given.src),
                  .outer = given.outer,
                  .inner = given.inner,
                  .outer_stride = given.outer_stride,
                  .inner_stride = given.inner_stride,
                  .batches = given.matrices(),
                  .batch_stride = given.batch_dims > 0 ? given.batch_stride[0] : 0,
                  .dst = static_cast<float*>(given.dst),
                  .dst_stride = given.leading_dimension};
  const bool along_inner = std::abs(copy.inner_stride) <= std::abs(copy.outer_stride);
  const int64_t tiles_inner = ceil_div<int64_t>(copy.inner, along_inner ? kLength : kLines);
  const int64_t tiles_outer = ceil_div<int64_t>(copy.outer, along_inner ? kLines : kLength);
  *params = {copy, static_cast<uint32_t>(tiles_inner), static_cast<uint32_t>(tiles_outer),
             along_inner};
  return tiles_inner * tiles_outer * copy.batches;
}

}  // namespace

Status copy(const align::AlignedCopy* copies, int count, cudaStream_t stream) {
  AllParams params{};
  int64_t blocks = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t mine = make_params(copies[i], &params.copies[i]);
    if (i == 0) params.blocks_of_first = static_cast<uint32_t>(mine);
    blocks += mine;
  }
  if (blocks > INT32_MAX) return {cudaErrorInvalidValue, "the size of an fp32 operand's copy"};
  return launch_grid(
      "the copy of an fp32 operand",
      {.blocks = dim3(static_cast<unsigned>(blocks)), .threads = dim3(kThreads), .stream = stream},
      copy_kernel, params);
}

}  // namespace xgemm::cuda::gemm::fp32
