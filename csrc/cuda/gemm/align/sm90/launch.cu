// Copies of 16-bit matrices of any strides and alignment, at the speed of memory: a thread writes
// 16 bytes at a time, and reads the 16-byte vectors that cover them, each of which its neighbour
// finds in the L1 cache.
#include <algorithm>

#include "common/math.h"
#include "cuda/gemm/align/launch.h"
#include "cuda/launch.h"

namespace xgemm::cuda::gemm::align {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsPerThread = 4;             // all in flight; 2 and 8 are slower on an H200
constexpr int kWidth = 8, kVectorBytes = 16;  // of a vector, in elements and bytes

// A block copies `lanes` vectors of kThreads / lanes * kRowsPerThread rows of one matrix.
struct Job {
  AlignedCopy copy;
  int lanes;                    // a power of 2
  bool rows_first;              // neighbouring threads have neighbouring rows, which are contiguous
  uint32_t chunks, row_groups;  // of a matrix: its blocks side by side, and below each other
  int64_t blocks;
  uintptr_t begin, end;  // of the source's memory: outside nothing is read
};

struct Jobs {
  Job of[kMaxCopies];
};

// The vectors of a thread: one of each of `rows` rows, `src_step` and `dst_step` elements apart.
struct Column {
  const uint16_t* src;
  uint16_t* dst;
  int64_t src_step, dst_step;
  int rows;
  int elements;  // of each vector that exist
};

__device__ int64_t batch_offset(const AlignedCopy& copy, int64_t matrix) {
  int64_t offset = 0;
  for (int i = copy.batch_dims - 1; i >= 0; --i) {
    const int64_t next = matrix / copy.batch_size[i];
    offset += (matrix - next * copy.batch_size[i]) * copy.batch_stride[i];
    matrix = next;
  }
  return offset;
}

__device__ Column find_column(const Job& job, int64_t block, int thread) {
  const AlignedCopy& copy = job.copy;
  const int64_t above = block / job.chunks;  // row groups
  const int64_t matrix = above / job.row_groups;
  const int rows_apart = kThreads / job.lanes;
  const int lane = job.rows_first ? thread / rows_apart : thread & (job.lanes - 1);
  const int row_lane = job.rows_first ? thread & (rows_apart - 1) : thread / job.lanes;
  const int64_t column = ((block - above * job.chunks) * job.lanes + lane) * kWidth;
  const int64_t row = (above - matrix * job.row_groups) * (rows_apart * kRowsPerThread) + row_lane;
  const int64_t rows_left = max(copy.outer - row, int64_t{0});
  return {static_cast<const uint16_t*>(copy.src) + batch_offset(copy, matrix) +
              row * copy.outer_stride + column * copy.inner_stride,
          static_cast<uint16_t*>(copy.dst) + (matrix * copy.outer + row) * copy.leading_dimension +
              column,
          rows_apart * copy.outer_stride,
          rows_apart * copy.leading_dimension,
          static_cast<int>(min(ceil_div<int64_t>(rows_left, rows_apart), int64_t{kRowsPerThread})),
          static_cast<int>(max(min(copy.inner - column, int64_t{kWidth}), int64_t{0}))};
}

// 16 bytes from `shift` bytes (an even number below 16) into low, high.
__device__ uint4 funnel_shift(const uint4& low, const uint4& high, uint32_t shift) {
  const bool two = shift & 8, one = shift & 4;
  const uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t v[6], u[5];
#pragma unroll
  for (int i = 0; i < 6; ++i) v[i] = two ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) u[i] = one ? v[i + 1] : v[i];
  const uint32_t bits = (shift & 2) * 8;
  return {__funnelshift_r(u[0], u[1], bits), __funnelshift_r(u[1], u[2], bits),
          __funnelshift_r(u[2], u[3], bits), __funnelshift_r(u[3], u[4], bits)};
}

__device__ uint4 load_elements(const uint16_t* src, int64_t stride, int elements) {
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (i < elements) words[i / 2] |= uint32_t{__ldg(src + i * stride)} << (16 * (i % 2));
  }
  return {words[0], words[1], words[2], words[3]};
}

__device__ void store(uint16_t* dst, const uint4& vector) {
  *reinterpret_cast<uint4*>(dst) = vector;
}

// Rows that are contiguous but not aligned. What a vector holds past its row is not looked at.
__device__ void copy_rows(const Job& job, const Column& column) {
  uint4 low[kRowsPerThread], high[kRowsPerThread];
  bool whole[kRowsPerThread];  // else the vectors around it reach out of the source's memory
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(column.src + i * column.src_step);
    const uintptr_t shift = address % kVectorBytes, first = address - shift;
    const bool two = shift + 2 * column.elements > kVectorBytes;
    whole[i] =
        i < column.rows && first >= job.begin && first + (two ? 2 : 1) * kVectorBytes <= job.end;
    low[i] = high[i] = {};
    const uint4* source = reinterpret_cast<const uint4*>(first);
    if (whole[i]) low[i] = __ldg(source);
    if (whole[i] && two) high[i] = __ldg(source + 1);
  }
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    if (i >= column.rows) break;
    const uint16_t* src = column.src + i * column.src_step;
    const auto shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(src) % kVectorBytes);
    store(column.dst + i * column.dst_step,
          whole[i] ? funnel_shift(low[i], high[i], shift) : load_elements(src, 1, column.elements));
  }
}

// No dimension is contiguous: element by element.
__device__ void gather_rows(int64_t inner_stride, const Column& column) {
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    if (i >= column.rows) break;
    const uint16_t* src = column.src + i * column.src_step;
    store(column.dst + i * column.dst_step, load_elements(src, inner_stride, column.elements));
  }
}

__global__ void __launch_bounds__(kThreads) copy_kernel(const __grid_constant__ Jobs jobs) {
  const bool second = blockIdx.x >= jobs.of[0].blocks;
  const Job& job = jobs.of[second ? 1 : 0];
  const Column column =
      find_column(job, blockIdx.x - (second ? jobs.of[0].blocks : 0), threadIdx.x);
  if (column.elements == 0) return;
  if (job.copy.inner_stride == 1) {
    copy_rows(job, column);
  } else {
    gather_rows(job.copy.inner_stride, column);
  }
}

// What a dimension adds to the lowest and the highest offset of the source.
struct Reach {
  int64_t low = 0, high = 0;
  void add(int64_t extent, int64_t stride) {
    const int64_t last = (extent - 1) * stride;
    low += std::min<int64_t>(last, 0), high += std::max<int64_t>(last, 0);
  }
};

// The widest block that leaves few of its lanes beyond a row, but no part of a warp to a row that
// could fill it.
int choose_lanes(int64_t vectors) {
  int lanes = kThreads;
  while (lanes > 1) {
    const int64_t idle = round_up<int64_t>(vectors, lanes) - vectors;
    if (idle * 8 <= vectors || (lanes <= 32 && vectors >= lanes)) break;
    lanes /= 2;
  }
  return lanes;
}

// The same where neighbouring threads have neighbouring rows: as many as there are, up to a warp's.
int choose_lanes_of_columns(int64_t rows) {
  int side_by_side = 8;
  while (side_by_side < 32 && side_by_side < rows) side_by_side *= 2;
  return kThreads / side_by_side;
}

// Rows of the copy lie behind one another in all matrices, so those whose rows do so in the source
// too are one matrix.
void fold_batch(AlignedCopy& copy) {
  while (copy.batch_dims > 0) {
    const int last = copy.batch_dims - 1;
    const int64_t size = copy.batch_size[last], stride = copy.batch_stride[last];
    if (copy.outer == 1) {
      copy.outer_stride = stride;
    } else if (size > 1 && stride != copy.outer * copy.outer_stride) {
      return;
    }
    copy.outer *= size;
    --copy.batch_dims;
  }
}

Job make_job(const AlignedCopy& given) {
  Job job{.copy = given};
  AlignedCopy& copy = job.copy;
  fold_batch(copy);
  if (copy.inner == 1) copy.inner_stride = 1;
  const int64_t vectors = ceil_div<int64_t>(copy.inner, kWidth);
  job.rows_first = copy.inner_stride != 1 && copy.outer_stride == 1;
  job.lanes = job.rows_first ? choose_lanes_of_columns(copy.outer) : choose_lanes(vectors);
  job.chunks = static_cast<uint32_t>(ceil_div<int64_t>(vectors, job.lanes));
  job.row_groups =
      static_cast<uint32_t>(ceil_div<int64_t>(copy.outer, kThreads / job.lanes * kRowsPerThread));
  job.blocks = copy.matrices() * job.row_groups * job.chunks;
  Reach reach;
  reach.add(copy.outer, copy.outer_stride);
  reach.add(copy.inner, copy.inner_stride);
  for (int i = 0; i < copy.batch_dims; ++i) reach.add(copy.batch_size[i], copy.batch_stride[i]);
  const auto* src = static_cast<const uint16_t*>(copy.src);
  job.begin = reinterpret_cast<uintptr_t>(src + reach.low);
  job.end = reinterpret_cast<uintptr_t>(src + reach.high + 1);
  return job;
}

}  // namespace

Status copy(const AlignedCopy* copies, int count, cudaStream_t stream) {
  Jobs jobs{};
  int64_t blocks = 0;
  for (int i = 0; i < count; ++i) {
    if (copies[i].matrices() * copies[i].outer * copies[i].inner > 0)
      jobs.of[i] = make_job(copies[i]);
    blocks += jobs.of[i].blocks;
  }
  if (blocks == 0) return {};
  const Grid grid{
      .blocks = dim3(static_cast<unsigned>(blocks)), .threads = dim3(kThreads), .stream = stream};
  return launch_grid("the aligned copy of an operand", grid, copy_kernel, jobs);
}

}  // namespace xgemm::cuda::gemm::align
