// From the accumulators of a tile to D.
#pragma once

#include "common/math.h"
#include "cuda/gemm/sm90/single_tile/params.h"
#include "cuda/gemm/sm90/store_line.cuh"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/stmatrix.h"
#include "cuda/ptx/stmatrix_trans.h"
#include "cuda/tile/accumulators.cuh"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

// Barriers: of the warpgroups that multiply, of all threads, and, from kOfWarpgroup on, of each
// warpgroup.
inline constexpr int kMultipliers = 1, kStarted = 2, kOfWarpgroup = 3;

// The first row and column of D of a tile or a part of one, and where the tile ends.
struct Corner {
  int m, n, m_end, n_end;
};

// Where a warpgroup's 64 rows of D wait for threads that write 16 bytes each of few lines of
// memory: buffers of 64 columns, `stride` elements apart.
template <typename T>
struct Staging {
  static constexpr int kColumns = 64, kElements = 64 * kColumns;
  static constexpr int buffers_of(int columns) { return (columns + kColumns - 1) / kColumns; }
  T* first;
  int stride;
};

// One warp's 16 rows of D, kColumns of them. Of a transposed D the four warps of a warpgroup store
// their 64 rows together, which are whole lines of memory.
template <typename T, int kColumns>
class WarpStore {
 public:
  // `bias`: of the columns or, bias_of_rows, of the 16 rows, in shared memory. `staging`: of the
  // warpgroup.
  __device__ WarpStore(const Params& params, const float* bias, const Staging<T>& staging)
      : params_(params),
        bias_(bias),
        staging_(staging),
        warp_(threadIdx.x / 32 % 4),
        lane_(threadIdx.x % 32) {}

  // sums: in wgmma's layout, from `at` on.
  __device__ void store(float (&sums)[kColumns / 2], const Corner& at, T* d) const {
    if (!params_.plain_end) [[unlikely]] {
      if (params_.parts > 1) {
        store_part(sums, at);
        return;
      }
      finish(sums);
    }
    if (params_.transposed) {
      store_columns(sums, at, d);
      return;
    }
    __syncwarp();  // what lay there has been read
    stage_rows(sums);
    __syncwarp();
    if (params_.vector_store) {
      store_rows(at, d);
    } else {
      store_elements(at, d);
    }
  }

 private:
  static constexpr int kBuffer = Staging<T>::kColumns;

  // Of the 8 columns after the `j`-th ones, or where there are none those again: they land where no
  // element of D is taken from.
  __device__ static const float* next_of(const float (&sums)[kColumns / 2], int j) {
    return sums + 4 * (j + 1 < kColumns / 8 ? j + 1 : j);
  }

  // Where 16 bytes of a line of a buffer lie: swizzled, so that stmatrix has no bank conflicts.
  __device__ static int position(int line, int piece) {
    return line * 64 + (piece ^ layout::swizzle_xor(line, 3)) * 8;
  }

  // Of one part of K: as they are, where the second launch finds them.
  __device__ void store_part(const float (&sums)[kColumns / 2], const Corner& at) const {
    float* part = params_.partials + blockIdx.z * params_.part_stride;
    const int64_t row_stride = params_.partial_row_stride,
                  column_stride = params_.partial_col_stride;
    const layout::Place first = layout::fragment_place(16, 8, lane_, 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.m + first.row + half * 8;
      if (row >= at.m_end) continue;
      float* to = part + row * row_stride + (at.n + first.column) * column_stride;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const int column = at.n + first.column + 8 * j;
        const float* x = sums + 4 * j + 2 * half;
        if (column < at.n_end) {
          if (column_stride == 1) {
            *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);  // n is a multiple of 8
          } else {
            to[0] = x[0];
            if (column + 1 < at.n_end) to[column_stride] = x[1];
          }
        }
        to += 8 * column_stride;
      }
    }
  }

  // A line of a buffer is 64 rows of a column, which eight threads store. The first columns are on
  // their way while the next ones are staged.
  template <int kFirst = 0>
  __device__ void store_columns(const float (&sums)[kColumns / 2], const Corner& at, T* d) const {
    if constexpr (kFirst < kColumns) {
      constexpr int kLeft = kColumns - kFirst, kWidth = kLeft < kBuffer ? kLeft : kBuffer;
      T* buffer = staging_.first + kFirst / kBuffer * staging_.stride;
      stage_columns<kFirst, kWidth>(sums, buffer);
      ptx::named_barrier_sync_apart(kOfWarpgroup + static_cast<int>(threadIdx.x) / 128, 128);
      const int piece = lane_ % 8, line = warp_ * 4 + lane_ / 8;
      const int row = at.m - warp_ * 16 + piece * 8, column = at.n + kFirst + line;
      if (row < at.m_end) {
        T* to = d + row + column * params_.d_col_stride;
        const T* from = buffer + position(line, piece);
#pragma unroll
        for (int i = 0; i < kWidth; i += 16) {
          const uint4 x = *reinterpret_cast<const uint4*>(from + i * 64);
          if (line + i < kWidth && column + i < at.n_end) *reinterpret_cast<uint4*>(to) = x;
          to += 16 * params_.d_col_stride;
        }
      }
      store_columns<kFirst + kWidth>(sums, at, d);
    }
  }

  template <int kFirst, int kWidth>
  __device__ void stage_columns(const float (&sums)[kColumns / 2], T* buffer) const {
    const int matrix = lane_ / 8;
    T* to = buffer + position(matrix / 2 * 8 + lane_ % 8, warp_ * 2 + matrix % 2);
#pragma unroll
    for (int j = 0; j < kWidth / 8; j += 2) {
      const float *x = sums + 4 * (kFirst / 8 + j), *next = next_of(sums, kFirst / 8 + j);
      ptx::stmatrix_x4_trans(to + j * 8 * 64, pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]),
                             pack2<T>(next[0], next[1]), pack2<T>(next[2], next[3]));
    }
  }

  // A line of a buffer is 64 columns of a row.
  __device__ void stage_rows(const float (&sums)[kColumns / 2]) const {
    const int line = warp_ * 16 + lane_ % 16;
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const float *x = sums + 4 * j, *next = next_of(sums, j);
      T* buffer = staging_.first + j / 8 * staging_.stride;
      ptx::stmatrix_x4(buffer + position(line, j % 8 + lane_ / 16), pack2<T>(x[0], x[1]),
                       pack2<T>(x[2], x[3]), pack2<T>(next[0], next[1]),
                       pack2<T>(next[2], next[3]));
    }
  }

  // All columns of few rows at once: by 64 columns of four rows it takes longer.
  __device__ void store_rows(const Corner& at, T* d) const {
    constexpr int kPieces = kColumns / 8, kRows = 32 / kPieces;
    const int row = lane_ / kPieces, piece = lane_ % kPieces;
    if (row >= kRows || at.n + piece * 8 >= at.n_end) return;
    const T* buffer = staging_.first + piece / 8 * staging_.stride;
    d += (at.m + row) * params_.d_row_stride + at.n + piece * 8;
#pragma unroll
    for (int i = 0; i < 16; i += kRows) {
      if (16 % kRows != 0 && row + i >= 16) break;
      const uint4 x =
          *reinterpret_cast<const uint4*>(buffer + position(warp_ * 16 + row + i, piece % 8));
      if (at.m + row + i < at.m_end) *reinterpret_cast<uint4*>(d) = x;
      d += kRows * params_.d_row_stride;
    }
  }

  __device__ void finish(float (&sums)[kColumns / 2]) const {
    if (params_.bias != nullptr && params_.bias_of_rows) [[unlikely]] {
      const int row = layout::fragment_place(16, 8, lane_, 0).row;
      add_to_rows(sums, bias_[row], bias_[row + 8]);
    } else if (params_.bias != nullptr) [[unlikely]] {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const int column = layout::fragment_place(16, 8, lane_, 4 * j).column;
        const float2 x = *reinterpret_cast<const float2*>(bias_ + column);
        add_quad(sums, j, {x.x, x.y, x.x, x.y});
      }
    }
    if (params_.activation != Activation::kNone) [[unlikely]] {
      // Of many columns that takes long: the choice leaves these to others.
      activate_in_turns<1>(params_.activation, sums);
    }
  }

  // Neighbouring lanes write neighbours along the dimension of D that is contiguous, and go along
  // the other one.
  __device__ void store_elements(const Corner& at, T* d) const {
    const int rows = at.m_end - at.m, columns = at.n_end - at.n;
    d += at.m * params_.d_row_stride + at.n * params_.d_col_stride;
    const auto element = [&](int row, int column) {
      const T* buffer = staging_.first + column / kBuffer * staging_.stride;
      return buffer[position(warp_ * 16 + row, column / 8 % 8) + column % 8];
    };
    if (params_.d_row_stride == 1) {
      const int row = lane_ % 16, first = lane_ / 16;
      if (row >= rows) return;
      store_line<kColumns, 2>(
          d + row + first * params_.d_col_stride, params_.d_col_stride, columns - first,
          [&](int eight, int i) { return element(row, eight * 8 + i + first); });
      return;
    }
#pragma unroll 1
    for (int column = lane_; column < min(columns, kColumns); column += 32) {
      store_line<16, 1>(d + column * params_.d_col_stride, params_.d_row_stride, rows,
                        [&](int eight, int i) { return element(eight * 8 + i, column); });
    }
  }

  const Params& params_;
  const float* bias_;
  Staging<T> staging_;
  int warp_, lane_;
};

// Columns of D that the first of two warpgroups finishes which share the k of a tile: stmatrix
// takes 16 at once.
constexpr int first_half(int columns) { return round_up(columns / 2, 16); }

// What add_and_store() wants to have of shared memory.
template <typename T, int kColumns>
constexpr int bytes_to_add_and_store() {
  return kColumns / 8 * 128 * 16 + 2 * Staging<T>::buffers_of(first_half(kColumns)) *
                                       Staging<T>::kElements * static_cast<int>(sizeof(T));
}

// acc: 64 rows of the tile, a warpgroup's, from the corner `at` on. `bias`: of these columns or,
// bias_of_rows, rows.
template <typename T, int kColumns>
__device__ inline void store(const Params& params, const float* bias, const Staging<T>& staging,
                             float (&acc)[kColumns / 2], const Corner& at, T* d) {
  const int row = threadIdx.x / 32 % 4 * 16;  // the warp's first
  WarpStore<T, kColumns>(params, params.bias_of_rows ? bias + row : bias, staging)
      .store(acc, {at.m + row, at.n, at.m_end, at.n_end}, d);
}

// Of the 64 rows of which both warpgroups have a part, this one sends the other's columns and
// finishes its own, kOwn from kFirst on.
template <typename T, int kColumns, int kFirst, int kOwn>
__device__ inline void add_half(const Params& params, const float* bias, float4* mail,
                                float (&acc)[kColumns / 2], const Corner& tile, T* d) {
  constexpr int kTheirs = kFirst == 0 ? kOwn : 0;  // their first column
  const int thread = threadIdx.x % 128, warp = thread / 32;
#pragma unroll
  for (int j = kTheirs / 8; j < (kTheirs + kColumns - kOwn) / 8; ++j) {
    mail[j * 128 + thread] = quad_of(acc, j);
  }
  ptx::named_barrier_sync_apart(kMultipliers, 256);  // the other comes from its own instance
  float sums[kOwn / 2];
#pragma unroll
  for (int j = 0; j < kOwn / 8; ++j) {
    const float4 x = mail[(kFirst / 8 + j) * 128 + thread];
    const float* own = acc + kFirst / 2 + 4 * j;
    sums[4 * j] = own[0] + x.x, sums[4 * j + 1] = own[1] + x.y;
    sums[4 * j + 2] = own[2] + x.z, sums[4 * j + 3] = own[3] + x.w;
  }
  constexpr int kElements = Staging<T>::kElements;
  constexpr int kBuffers = Staging<T>::buffers_of(first_half(kColumns));
  T* behind = reinterpret_cast<T*>(mail + kColumns / 8 * 128);
  const Staging<T> staging{behind + threadIdx.x / 128 * kBuffers * kElements, kElements};
  WarpStore<T, kOwn>(params, bias + (params.bias_of_rows ? warp * 16 : kFirst), staging)
      .store(sums, {tile.m + warp * 16, tile.n + kFirst, tile.m_end, tile.n_end}, d);
}

// acc: this warpgroup's part of the sums over k of the tile's 64 rows. `shared` is free.
template <typename T, int kColumns>
__device__ inline void add_and_store(const Params& params, const float* bias, void* shared,
                                     float (&acc)[kColumns / 2], int warpgroup, const Corner& tile,
                                     T* d) {
  constexpr int kFirst = first_half(kColumns);
  auto* mail = static_cast<float4*>(shared);
  if (warpgroup == 0) {
    add_half<T, kColumns, 0, kFirst>(params, bias, mail, acc, tile, d);
  } else {
    add_half<T, kColumns, kFirst, kColumns - kFirst>(params, bias, mail, acc, tile, d);
  }
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
