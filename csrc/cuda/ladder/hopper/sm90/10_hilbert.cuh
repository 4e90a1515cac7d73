// Ladder hopper, rung 10: tiles along a Hilbert curve.
//
// Source:    Pranjal Shankhdhar, "Outperforming cuBLAS on H100: a Worklog", kernel 11; the curve's
//            formula is that of `xgemm layout order`.
// Changed:   pairs take tiles in the order of a Hilbert curve over C, not in groups of rows.
// Published: 764 TFLOP/s on an H100.
//
// The curve visits every tile of a square whose side is a power of two, and any stretch of it
// covers a compact piece of the square: tiles that run together share panels of A and B. So do
// those that run one after another, as the curve never jumps: part of what the next wave reads is
// in L2.
//
// Where C is no such square the curve is drawn over the smallest that holds it, and pairs skip what
// lies outside: their shares are then less even. At 8192^3 there are 32 x 32 tiles of pairs.
//
// What is wrong with it. A warp stores 8 rows of 8 columns to a box by an instruction of 4 bytes a
// lane: 16 of them for 16 rows of 64 columns.
#pragma once

#include "cuda/ladder/hopper/sm90/common.cuh"
#include "cuda/ptx/setmaxnreg.h"
#include "cuda/ptx/tma.h"
#include "cuda/tile/layout_index.h"

namespace xgemm::cuda::ladder::hopper::rung10 {

inline constexpr int kBlockM = 128, kBlockN = 256, kBlockK = 64;
inline constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroup;
inline constexpr int kBoxN = kSwizzleElements;  // columns of C that are stored at a time
inline constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
inline constexpr int kStages = 4;
inline constexpr int kPair = 2, kPairM = kPair * kBlockM;  // blocks of a cluster, and their rows

struct Shared {
  alignas(1024) Element a[kStages][kBlockM * kBlockK];
  alignas(1024) Element b[kStages][kBlockN * kBlockK];
  alignas(1024) Element c[kConsumers][2][64 * kBoxN];  // what TMA stores
  uint64_t full[kStages], empty[kStages];
};
static_assert(kSmemBytes<Shared> <= kMostSmemBytes, "a block has 227 KB");

inline constexpr int kTileBytes = (kBlockM + kBlockN) * kBlockK * sizeof(Element);

// Positions of the curve: those of the smallest square of 2^i tiles that holds the pairs' tiles.
__device__ inline int tile_count(const Operands& x) {
  int side = 1;
  while (side < x.m / kPairM || side < x.n / kBlockN) side *= 2;
  return side * side;
}

__device__ inline layout::Place place_of(int index, int count) {
  const auto [row, column] = layout::hilbert_tile(index, count);
  return {row * kPairM, column * kBlockN};
}

// Calls visit(row, column) for each tile of this pair.
template <typename Visit>
__device__ inline void for_each_tile(const Operands& x, Visit visit) {
  const int count = tile_count(x);
  for (int index = blockIdx.x / kPair; index < count; index += gridDim.x / kPair) {
    const auto [row, column] = place_of(index, count);
    if (row < x.m && column < x.n) visit(row, column);
  }
}

// One thread.
__device__ inline void produce(const Operands& x, Shared& shared, int rank) {
  constexpr int kHalf = kBlockN / kPair;
  constexpr uint16_t kBoth = 3;
  PipelineState<kStages> state;
  for_each_tile(x, [&](int row, int column) {
    for (int k = 0; k < x.k; k += kBlockK, state.advance()) {
      uint64_t *full = &shared.full[state.stage], *empty = &shared.empty[state.stage];
      ptx::mbarrier_wait(empty, state.parity ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, kTileBytes);
      ptx::tma_load_2d(shared.a[state.stage], &x.a, full, k, row + rank * kBlockM);
      ptx::tma_load_multicast_2d(shared.b[state.stage] + rank * kHalf * kBlockK, &x.b, full, kBoth,
                                 k, column + rank * kHalf);
    }
  });
}

using Sums = float[kBlockN / 2];

// sums = A B^T, or sums += A B^T, 16 k at a time; 64 rows of A.
__device__ inline void multiply(Sums& sums, const Element* a, const Element* b, bool add) {
  const uint64_t a_tile = descriptor(a), b_tile = descriptor(b);
  ptx::wgmma_fence();
#pragma unroll
  for (int k16 = 0; k16 < kBlockK / 16; ++k16) {
    ptx::wgmma<Element, 0, 0>(sums, a_tile + k16 * kStepK16, b_tile + k16 * kStepK16,
                              add || k16 > 0);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
}

// To rows [row, row + 64) of C from column `column` on, by two boxes in turn.
__device__ inline void store(const Sums& sums, const CUtensorMap& c,
                             Element (&boxes)[2][64 * kBoxN], int row, int column, int consumer,
                             int thread) {
  const int box_row = thread / 32 * 16 + thread % 32 / 4, pair = thread % 4 * 2;
#pragma unroll
  for (int box = 0; box < kBlockN / kBoxN; ++box) {
    Element* to = boxes[box % 2];
    if (thread == 0) ptx::bulk_wait_group_read<1>();  // the store before the last has read `to`
    ptx::named_barrier_sync(1 + consumer, kWarpgroup);
#pragma unroll
    for (int i = 0; i < kBoxN / 2; i += 2) {
      const float* s = &sums[box * kBoxN / 2 + i];
      const int at = box_row + i % 4 * 4, chunk = (i / 4) ^ (at % 8);
      *reinterpret_cast<__nv_bfloat162*>(to + at * kBoxN + chunk * 8 + pair) =
          __floats2bfloat162_rn(s[0], s[1]);
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(1 + consumer, kWarpgroup);
    if (thread == 0) {
      ptx::tma_store_2d(&c, to, column + box * kBoxN, row);
      ptx::bulk_commit_group();
    }
  }
}

// A warpgroup: its 64 rows of each tile.
__device__ inline void consume(const Operands& x, const CUtensorMap& c, Shared& shared, int rank,
                               int consumer, int thread) {
  PipelineState<kStages> state;
  for_each_tile(x, [&](int row, int column) {
    Sums sums;
    for (int k = 0; k < x.k; k += kBlockK, state.advance()) {
      ptx::mbarrier_wait(&shared.full[state.stage], state.parity);
      multiply(sums, shared.a[state.stage] + consumer * 64 * kBlockK, shared.b[state.stage], k > 0);
      if (thread < kPair) ptx::mbarrier_arrive_cluster(&shared.empty[state.stage], thread);
    }
    const int first = row + rank * kBlockM + consumer * 64;
    store(sums, c, shared.c[consumer], first, column, consumer, thread);
  });
  if (thread == 0) ptx::bulk_wait_group_read<0>();  // shared memory ends with the block
}

__global__ void __launch_bounds__(kThreads, 1)
    gemm_kernel(const __grid_constant__ Operands x, const __grid_constant__ CUtensorMap c) {
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 16);
  auto& shared = aligned<Shared>(raw);
  const int warpgroup = warpgroup_index(), thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int rank = static_cast<int>(ptx::cluster_cta_rank());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(&shared.full[stage], 1);
      ptx::mbarrier_init(&shared.empty[stage], kPair * kConsumers);
    }
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();  // the barriers of both blocks stand
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (thread == 0) produce(x, shared, rank);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    consume(x, c, shared, rank, warpgroup - 1, thread);
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();  // nobody arrives at this block's barriers any more
}

inline Status run(const Product& product) {
  static SharedMemoryLimit limit;
  Operands operands;
  const Status made = make_operands(product, kBlockM, kBlockN / kPair, &operands);
  if (!made.ok()) return made;
  CUtensorMap c;
  if (!encode_map(&c, product.c, product.m, product.n, 64)) {
    return {cudaErrorInvalidValue, "ladder hopper: making the tensor map of C"};
  }
  const Grid grid{.blocks = dim3(static_cast<unsigned>(product.sm_count / kPair * kPair)),
                  .threads = kThreads,
                  .shared_bytes = kSmemBytes<Shared>,
                  .stream = product.stream,
                  .cluster = dim3(kPair)};
  return launch_large("ladder hopper: rung 10", limit, grid, gemm_kernel, operands, c);
}

}  // namespace xgemm::cuda::ladder::hopper::rung10
