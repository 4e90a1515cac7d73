#include <algorithm>

#include "cuda/launch.h"
#include "cuda/ptx/griddep.h"
#include "cuda/shared_memory.h"
#include "cuda/w4a16/sm90/wgmma/gather.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 8;                   // elements of a store
constexpr int kMostStaged = 48 * 1024 / 2;  // channels of a row that shared memory takes
constexpr int64_t kMostBlocks = 132 * 4;

// Channel `channel` of the row at `row`.
__device__ uint32_t element(const RowGather& job, const uint16_t* row, int64_t stride,
                            int channel) {
  int from = channel;
  if (job.perm != nullptr) from = __ldg(job.perm + channel);
  return static_cast<unsigned>(from) < static_cast<unsigned>(job.channels) ? row[from * stride] : 0;
}

__device__ void gather_row(const RowGather& job, const uint16_t* row, int64_t stride,
                           uint16_t* dst) {
  for (int first = threadIdx.x * kWidth; first < job.channels; first += kThreads * kWidth) {
    uint32_t words[kWidth / 2] = {};
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (first + i < job.channels) {
        words[i / 2] |= element(job, row, stride, first + i) << (16 * (i % 2));
      }
    }
    *reinterpret_cast<uint4*>(dst + first) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// A block takes rows in turns. Those that fit pass through shared memory, where access in any order
// is fast.
__global__ void __launch_bounds__(kThreads) gather_kernel(const RowGather job, bool staged) {
  XGEMM_DYNAMIC_SHARED(uint16_t, stage, 16);
  ptx::griddep_launch_dependents();
  ptx::griddep_wait();
  const int64_t pitch = pitch_of(job.channels);
  for (int64_t r = blockIdx.x; r < job.rows; r += gridDim.x) {
    const uint16_t* row = job.src + r * job.row_stride;
    if (!staged) {
      gather_row(job, row, job.col_stride, job.dst + r * pitch);
      continue;
    }
    __syncthreads();  // the row before has been read
#pragma unroll 4
    for (int i = threadIdx.x; i < job.channels; i += kThreads) {
      stage[i] = __ldg(row + i * job.col_stride);
    }
    __syncthreads();
    gather_row(job, stage, 1, job.dst + r * pitch);
  }
}

}  // namespace

Status gather_rows(const RowGather& job, cudaStream_t stream) {
  const bool staged = job.channels <= kMostStaged;
  const Grid grid{.blocks = dim3(static_cast<unsigned>(std::min(job.rows, kMostBlocks))),
                  .threads = dim3(kThreads),
                  .shared_bytes = staged ? job.channels * sizeof(uint16_t) : 0,
                  .stream = stream,
                  .overlaps_previous = job.overlaps_previous};
  return launch_grid("the copy of x for the W4A16 product", grid, gather_kernel, job, staged);
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
