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

// One warp's 16 rows of D, kColumns of them: through shared memory, so that threads write 16 bytes
// each of few rows at once. Of a transposed D the four warps of a warpgroup store their 64 rows
// together, which are whole lines of memory.
template <typename T, int kColumns>
class WarpStore {
  static constexpr int kStaged = round_up(kColumns, 16);  // stmatrix takes 16 columns at once
  static constexpr int kPitch = kStaged + 8;              // elements: free of bank conflicts
  // Of the transpose, whose columns lie in the staging of all four warps: 64 rows of D each.
  static constexpr int kColumnPitch = 64 + 8;
  static constexpr int kOfTranspose = kStaged * kColumnPitch / 4;  // elements, a warp's

 public:
  static constexpr int kBytes = 2 * (16 * kPitch > kOfTranspose ? 16 * kPitch : kOfTranspose);
  static_assert(kBytes % 16 == 0);

  // `bias`: of the columns or, bias_of_rows, of the 16 rows, in shared memory. `staging`: of the
  // warpgroup.
  __device__ WarpStore(const Params& params, const float* bias, void* staging)
      : params_(params),
        bias_(bias),
        warp_(threadIdx.x / 32 % 4),
        lane_(threadIdx.x % 32),
        of_all_(static_cast<T*>(staging)),
        staging_(of_all_ + warp_ * (kBytes / static_cast<int>(sizeof(T)))) {}

  // sums: in wgmma's layout, from `at` on.
  __device__ void store(float (&sums)[kColumns / 2], const Corner& at, T* d) const {
    if (params_.plain_end) [[likely]] {  // by itself: what is short is fetched fast
      stage(sums);
      store_vectors(at, d);
      return;
    }
    if (params_.parts > 1) {
      store_part(sums, at);
      return;
    }
    finish(sums);
    if (params_.transposed) {
      stage_transpose(sums);
      store_columns(at, d);
      return;
    }
    stage(sums);
    if (params_.vector_store) {
      store_vectors(at, d);
    } else {
      store_elements(at, d);
    }
  }

 private:
  // Of the 8 columns after the `j`-th ones, or where there are none those again: they land where no
  // element of D is taken from.
  __device__ static const float* next_of(const float (&sums)[kColumns / 2], int j) {
    return sums + 4 * (j + 1 < kColumns / 8 ? j + 1 : j);
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

  __device__ void stage_transpose(const float (&sums)[kColumns / 2]) const {
    const int matrix = lane_ / 8;
    T* to = of_all_ + (matrix / 2 * 8 + lane_ % 8) * kColumnPitch + warp_ * 16 + matrix % 2 * 8;
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const float *x = sums + 4 * j, *next = next_of(sums, j);
      ptx::stmatrix_x4_trans(to + j * 8 * kColumnPitch, pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]),
                             pack2<T>(next[0], next[1]), pack2<T>(next[2], next[3]));
    }
    ptx::named_barrier_sync_apart(kOfWarpgroup + static_cast<int>(threadIdx.x) / 128, 128);
  }

  // Whole lines: 64 rows of each column, 128 bytes, by eight threads.
  __device__ void store_columns(const Corner& at, T* d) const {
    const int row = lane_ % 8 * 8, column = warp_ * 4 + lane_ / 8;
    const int first = at.m - warp_ * 16;
    if (first + row >= at.m_end) return;
    d += first + row + (at.n + column) * params_.d_col_stride;
    const T* from = of_all_ + column * kColumnPitch + row;
#pragma unroll
    for (int i = 0; i < kColumns; i += 16) {
      const uint4 piece = *reinterpret_cast<const uint4*>(from + i * kColumnPitch);
      if (at.n + column + i < at.n_end) *reinterpret_cast<uint4*>(d) = piece;
      d += 16 * params_.d_col_stride;
    }
  }

  __device__ void stage(const float (&sums)[kColumns / 2]) const {
    const int matrix = lane_ / 8;
    T* to = staging_ + (matrix % 2 * 8 + lane_ % 8) * kPitch + matrix / 2 * 8;
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const float *x = sums + 4 * j, *next = next_of(sums, j);
      ptx::stmatrix_x4(to + j * 8, pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]),
                       pack2<T>(next[0], next[1]), pack2<T>(next[2], next[3]));
    }
    __syncwarp();
  }

  __device__ void store_vectors(const Corner& at, T* d) const {
    constexpr int kPieces = kColumns / 8, kRows = 32 / kPieces;
    const int row = lane_ / kPieces, column = lane_ % kPieces * 8;
    if (row >= kRows || at.n + column >= at.n_end) return;
    const T* from = staging_ + row * kPitch + column;
    d += (at.m + row) * params_.d_row_stride + at.n + column;
#pragma unroll
    for (int i = 0; i * kRows < 16; ++i) {
      if (16 % kRows != 0 && row + i * kRows >= 16) break;
      const uint4 piece = *reinterpret_cast<const uint4*>(from + i * kRows * kPitch);
      if (at.m + row + i * kRows < at.m_end) *reinterpret_cast<uint4*>(d) = piece;
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
    if (params_.d_row_stride == 1) {
      const int row = lane_ % 16, first = lane_ / 16;
      const T* from = staging_ + row * kPitch + first;
      if (row >= rows) return;
      store_line<kColumns, 2>(d + row + first * params_.d_col_stride, params_.d_col_stride,
                              columns - first,
                              [&](int eight, int i) { return from[eight * 8 + i]; });
      return;
    }
#pragma unroll 1
    for (int column = lane_; column < min(columns, kColumns); column += 32) {
      const T* from = staging_ + column;
      store_line<16, 1>(d + column * params_.d_col_stride, params_.d_row_stride, rows,
                        [&](int eight, int i) { return from[(eight * 8 + i) * kPitch]; });
    }
  }

  const Params& params_;
  const float* bias_;
  int warp_, lane_;
  T *of_all_, *staging_;
};

// Columns of D that the first of two warpgroups finishes which share the k of a tile: stmatrix
// takes 16 at once.
constexpr int first_half(int columns) { return round_up(columns / 2, 16); }

// What the functions below want to have of shared memory.
template <typename T, int kColumns, int kSharers, int kFragments>
constexpr int staging_bytes() {
  constexpr int kStored = kSharers > 1 ? first_half(kColumns) : kColumns;
  const int sums = kSharers > 1 ? kColumns / 8 * 128 * 16 : 0;
  return sums + 4 * kFragments * WarpStore<T, kStored>::kBytes;
}

// acc: 64 rows of the tile, a warpgroup's, from the corner `at` on. `bias`: of these columns or,
// bias_of_rows, rows. All have `staging`, which is free: the `fragment`-th part of it is theirs.
template <typename T, int kColumns>
__device__ inline void store(const Params& params, const float* bias, void* staging,
                             float (&acc)[kColumns / 2], int fragment, const Corner& at, T* d) {
  using Store = WarpStore<T, kColumns>;
  const int row = threadIdx.x / 32 % 4 * 16;  // the warp's first
  char* of_warps = static_cast<char*>(staging) + fragment * 4 * Store::kBytes;
  Store(params, params.bias_of_rows ? bias + row : bias, of_warps)
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
  using Store = WarpStore<T, kOwn>;
  constexpr int kBytes = WarpStore<T, first_half(kColumns)>::kBytes;
  char* of_warps =
      reinterpret_cast<char*>(mail + kColumns / 8 * 128) + threadIdx.x / 128 * 4 * kBytes;
  Store(params, bias + (params.bias_of_rows ? warp * 16 : kFirst), of_warps)
      .store(sums, {tile.m + warp * 16, tile.n + kFirst, tile.m_end, tile.n_end}, d);
}

// acc: this warpgroup's part of the sums over k of the tile's 64 rows.
template <typename T, int kColumns>
__device__ inline void add_and_store(const Params& params, const float* bias, void* staging,
                                     float (&acc)[kColumns / 2], int warpgroup, const Corner& tile,
                                     T* d) {
  constexpr int kFirst = first_half(kColumns);
  auto* mail = static_cast<float4*>(staging);
  if (warpgroup == 0) {
    add_half<T, kColumns, 0, kFirst>(params, bias, mail, acc, tile, d);
  } else {
    add_half<T, kColumns, kFirst, kColumns - kFirst>(params, bias, mail, acc, tile, d);
  }
}

}  // namespace xgemm::cuda::gemm::sm90::single_tile
