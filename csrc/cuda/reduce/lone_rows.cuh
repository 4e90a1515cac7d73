// Rows of a few loads a thread, which are all under way at once: a row by a block, or by the blocks
// of a cluster (sm_90).
#pragma once

#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/st_async.h"
#include "cuda/reduce/rows.cuh"

namespace xgemm::cuda::reduce {

// What a thread has of a row, or of a piece of one.
template <typename Op, int U>
class RowLoads {
 public:
  using T = typename Op::Element;
  using Lane = typename Op::Lane;

  // `before`: loads of the pieces before this one.
  __device__ RowLoads(const T* row, uint32_t extent, uint32_t before, uint64_t l2_policy) {
    skip_ = (reinterpret_cast<uintptr_t>(row) & 15) / sizeof(T);
    first_ = before + threadIdx.x + (skip_ != 0), end_ = (skip_ + extent) / V;
    const T* vectors = row - skip_ + first_ * V;
#pragma unroll
    for (int i = 0; i < U; ++i) {
      if (first_ + i * blockDim.x < end_) {
        x_[i] = ptx::ld_global_nc_no_allocate(vectors + i * blockDim.x * V, l2_policy);
      }
    }
    // Elements before the first and after the last whole vector: one of each of the first threads.
    const uint32_t head = min((V - skip_) % V, extent);
    edges_ = before == 0 ? head + (extent - head) % V : 0;
    edge_ = threadIdx.x < head ? threadIdx.x : extent - edges_ + threadIdx.x;
    if (threadIdx.x < edges_) edge_bits_ = load_bits(row + edge_);
  }

  __device__ Lane fold(const Params& p) const {
    Lane parts[U];
#pragma unroll
    for (int i = 0; i < U; ++i) {
      const uint32_t at = first_ + i * blockDim.x;
      uint4 x = x_[i];
      if (at >= end_) x = {p.filler_low, p.filler_high, p.filler_low, p.filler_high};
      parts[i] = take_vector<Op>(p, Op::identity(), x, at * V - skip_);
    }
    Lane lane = fold_tree<U>(parts, [](Lane a, Lane b) { return Op::meet(a, b); });
    if (threadIdx.x < edges_) {
      const Number<T> one[1] = {to_number<T, Op::kTransforms>(p.transform, edge_bits_)};
      lane = Op::meet(lane, take<Op>(p, Op::identity(), one, edge_, 1));
    }
    return lane;
  }

 private:
  static constexpr int V = kVector<T>;
  uint4 x_[U];
  Bits<T> edge_bits_{};
  uint32_t skip_, first_, end_, edge_, edges_;
};

inline LoneRowsParams lone_rows_params(const Params& p) {
  return {.in = p.in,
          .out = p.out,
          .row_stride = p.row_stride,
          .row_out_stride = p.row_out_stride,
          .l2_policy = p.l2_policy,
          .extent = static_cast<uint32_t>(p.extent),
          .base = p};
}

// A row by a block.
template <typename Op>
__global__ void __launch_bounds__(kMaxRowWarps * 32, 2)
    lone_rows_kernel(const __grid_constant__ LoneRowsParams p) {
  const auto* row = static_cast<const typename Op::Element*>(p.in) + blockIdx.x * p.row_stride;
  const RowLoads<Op, kLoneRowLoads> loads(row, p.extent, 0, p.l2_policy);
  const auto lane = meet_lanes<Op>(loads.fold(p.base), 32);
  const auto acc = meet_warps<Op>(Op::widen(lane, 0));
  if (threadIdx.x == 0) {
    static_cast<typename Op::Out*>(p.out)[blockIdx.x * p.row_out_stride] = Op::finish(acc, p.base);
  }
}

// The warps of a cluster send their accumulators to its first block.
template <typename Acc>
class WarpMeeting {
 public:
  __device__ WarpMeeting(char* memory, uint32_t blocks)
      : barrier_(reinterpret_cast<uint64_t*>(memory)),
        inbox_(reinterpret_cast<uint64_t*>(memory) + 2),
        warps_(blockDim.x / 32),
        slots_(blocks * warps_) {}

  // At the start, by all threads.
  __device__ void open(uint32_t rank) const {
    if (rank == 0 && threadIdx.x == 0) {
      ptx::mbarrier_init(barrier_, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(barrier_, slots_ * sizeof(uint64_t));
    }
    ptx::cluster_arrive_relaxed();
  }

  // By all threads; `acc` of a warp's first.
  __device__ void send(uint32_t rank, const Acc& acc) const {
    ptx::cluster_wait();
    if (threadIdx.x % 32 != 0) return;
    float words[2] = {};
    memcpy(words, &acc, sizeof(Acc));
    const uint64_t* slot = inbox_ + rank * warps_ + threadIdx.x / 32;
    ptx::st_async_v2(ptx::mapa(ptx::smem_address(slot), 0),
                     ptx::mapa(ptx::smem_address(barrier_), 0), words[0], words[1]);
  }

  // By the first block's first warp: what this lane has of all warps'.
  template <typename Op>
  __device__ Acc receive() const {
    ptx::mbarrier_wait(barrier_, 0);
    Acc met = Op::widen(Op::identity(), 0);
#pragma unroll
    for (uint32_t i = 0; i < kMaxCluster * kMaxRowWarps / 32; ++i) {
      if (threadIdx.x + 32 * i < slots_) {
        Acc acc;
        memcpy(&acc, inbox_ + threadIdx.x + 32 * i, sizeof(Acc));
        met = Op::combine(met, acc);
      }
    }
    return met;
  }

 private:
  uint64_t *barrier_, *inbox_;  // [blocks][warps]
  uint32_t warps_, slots_;
};

// A row by the blocks of a cluster: piece blockIdx.x of row blockIdx.y.
template <typename Op>
__global__ void __launch_bounds__(kMaxRowWarps * 32, 2)
    row_pieces_kernel(const __grid_constant__ LoneRowsParams p) {
  using T = typename Op::Element;
  using Acc = typename Op::Acc;
  XGEMM_DYNAMIC_SHARED(char, raw, 16);
  const uint32_t piece = blockIdx.x;
  const WarpMeeting<Acc> meeting(raw, gridDim.x);
  meeting.open(piece);
  const T* row = static_cast<const T*>(p.in) + blockIdx.y * p.row_stride;
  const RowLoads<Op, kRowPieceLoads> loads(row, p.extent, piece * (blockDim.x * kRowPieceLoads),
                                           p.l2_policy);
  meeting.send(piece, Op::widen(meet_lanes<Op>(loads.fold(p.base), 32), 0));
  if (piece != 0 || threadIdx.x >= 32) return;
  Acc acc = meeting.template receive<Op>();
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) acc = Op::combine(acc, shuffle_xor(acc, mask));
  if (threadIdx.x == 0) {
    static_cast<typename Op::Out*>(p.out)[blockIdx.y * p.row_out_stride] = Op::finish(acc, p.base);
  }
}

}  // namespace xgemm::cuda::reduce
