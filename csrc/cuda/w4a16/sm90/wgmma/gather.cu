#include "cuda/launch.h"
#include "cuda/ptx/griddep.h"
#include "cuda/shared_memory.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/w4a16/sm90/wgmma/gather.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {
namespace {

constexpr int kThreads = 512;
constexpr int kWidth = 8;  // channels of a load or store
constexpr int64_t kMaxBlocks = 132 * 4;

// A channel of kRows rows, as it lies in shared memory.
template <int kRows>
struct alignas(2 * kRows) Column {
  uint32_t pair[kRows / 2];  // rows 2 i and 2 i + 1
};

// 16 bytes of them, which are written at once.
template <int kRows>
struct alignas(16) Piece {
  static constexpr int kColumns = 8 / kRows;
  Column<kRows> column[kColumns];
};

// Where channel `channel` lies. A thread writes kWidth of them; of four rows these are 64 bytes, so
// that pieces in order would have the same banks in every second thread.
template <int kRows>
__device__ inline int place_of(int channel) {
  return kRows == 4 ? channel ^ (channel / kWidth & 6) : channel;
}

__device__ inline uint32_t half_of(uint32_t word, int i) { return word >> (16 * i) & 0xffff; }

// kWidth channels of a row from `channel` on; what is outside of it is 0.
__device__ inline uint4 load(const RowGather& job, int64_t row, int channel) {
  const uint16_t* from = job.src + row * job.row_stride + channel * job.col_stride;
  if (job.aligned && channel + kWidth <= job.channels) {
    return *reinterpret_cast<const uint4*>(from);
  }
  uint32_t words[kWidth / 2] = {};
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (channel + i >= job.channels) break;
    words[i / 2] |= static_cast<uint32_t>(from[i * job.col_stride]) << (16 * (i % 2));
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Where the kWidth channels from `channel` on come from; -1: nowhere.
struct Origins {
  int4 half[2];
  __device__ int operator[](int i) const {
    const int4& x = half[i / 4];
    return i % 4 == 0 ? x.x : i % 4 == 1 ? x.y : i % 4 == 2 ? x.z : x.w;
  }
};
__device__ inline Origins origins(const RowGather& job, int channel) {
  const int32_t* from = job.perm + channel;
  if (job.perm_aligned && channel + kWidth <= job.channels) {
    const auto* halves = reinterpret_cast<const int4*>(from);
    return {{__ldg(halves), __ldg(halves + 1)}};
  }
  int x[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) x[i] = channel + i < job.channels ? __ldg(from + i) : -1;
  return {{make_int4(x[0], x[1], x[2], x[3]), make_int4(x[4], x[5], x[6], x[7])}};
}

// A block takes kRows rows at a time through shared memory, where a channel of all of them is one
// access, in any order.
template <int kRows>
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ RowGather job) {
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 16);
  auto* pieces = reinterpret_cast<Piece<kRows>*>(raw);
  const auto* stage = reinterpret_cast<const Column<kRows>*>(raw);  // [place_of(channel)]
  ptx::griddep_launch_dependents();
  ptx::griddep_wait();
  const int mine = threadIdx.x * kWidth;
  Origins next{};  // asked for before they are needed
  if (mine < job.channels) next = origins(job, mine);
  const int64_t pitch = pitch_of(job.channels);
  for (int64_t first = int64_t{blockIdx.x} * kRows; first < job.rows;
       first += int64_t{gridDim.x} * kRows) {
    const int count = static_cast<int>(min(job.rows - first, int64_t{kRows}));
    __syncthreads();  // the rows before have been read
    for (int channel = mine; channel < job.channels; channel += kThreads * kWidth) {
      uint32_t words[kRows][kWidth / 2];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint4 x = load(job, first + min(r, count - 1), channel);
        words[r][0] = x.x, words[r][1] = x.y, words[r][2] = x.z, words[r][3] = x.w;
      }
      constexpr int kColumns = Piece<kRows>::kColumns;
#pragma unroll
      for (int i = 0; i < kWidth; i += kColumns) {
        Piece<kRows> piece;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int word = (i + c) / 2, half = (i + c) % 2;
#pragma unroll
          for (int r = 0; r < kRows; r += 2) {
            piece.column[c].pair[r / 2] =
                half_of(words[r][word], half) | half_of(words[r + 1][word], half) << 16;
          }
        }
        pieces[place_of<kRows>(channel + i) / kColumns] = piece;
      }
    }
    __syncthreads();
    for (int channel = mine; channel < job.channels; channel += kThreads * kWidth) {
      const Origins from = next;
      const int after = channel + kThreads * kWidth;
      const int then = after < job.channels ? after : mine;  // of the next rows
      if (then != channel) next = origins(job, then);
      uint32_t words[kRows][kWidth / 2] = {};
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (static_cast<unsigned>(from[i]) >= static_cast<unsigned>(job.channels)) continue;
        const Column<kRows> column = stage[place_of<kRows>(from[i])];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          words[r][i / 2] |= half_of(column.pair[r / 2], r % 2) << (16 * (i % 2));
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= count) break;
        *reinterpret_cast<uint4*>(job.dst + (first + r) * pitch + channel) =
            make_uint4(words[r][0], words[r][1], words[r][2], words[r][3]);
      }
    }
  }
}

template <int kRows>
Status launch(const RowGather& job, cudaStream_t stream) {
  constexpr const char* kName = "the copy of x for the W4A16 product";
  static SharedMemoryLimit limit;
  const cudaError_t set = limit.raise_to_most(reinterpret_cast<const void*>(gather_kernel<kRows>));
  if (set != cudaSuccess) return {set, kName};
  const int64_t blocks = ceil_div<int64_t>(job.rows, kRows);
  const Grid grid{.blocks = dim3(static_cast<unsigned>(min(blocks, kMaxBlocks))),
                  .threads = dim3(kThreads),
                  .shared_bytes = pitch_of(job.channels) * sizeof(Column<kRows>),
                  .stream = stream,
                  .overlaps_previous = job.overlaps_previous};
  return launch_grid(kName, grid, gather_kernel<kRows>, job);
}

}  // namespace

Status gather_rows(RowGather job, cudaStream_t stream) {
  job.aligned = reinterpret_cast<uintptr_t>(job.src) % 16 == 0 && job.col_stride == 1 &&
                job.row_stride % kWidth == 0;
  job.perm_aligned = reinterpret_cast<uintptr_t>(job.perm) % 16 == 0;
  return job.channels <= kMaxGathered / 2 ? launch<4>(job, stream) : launch<2>(job, stream);
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
