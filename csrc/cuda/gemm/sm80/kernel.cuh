// Dense GEMM for every GPU from Ampere on: cp.async into a ring of shared-memory stages, ldmatrix
// and mma.sync out of it.
#pragma once

#include "common/activation.h"
#include "common/math.h"
#include "cuda/gemm/sm80/epilogue.cuh"
#include "cuda/gemm/sm80/loader.cuh"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mbarrier_sm80.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/shared_memory.h"

namespace xgemm::cuda::gemm::sm80 {

template <typename Tile>
struct SharedStorage {
  struct Stage {
    uint16_t a[Tile::kBlockM * Tile::kBlockK];
    uint16_t b[Tile::kBlockN * Tile::kBlockK];
  };
  union {
    Stage ring[Tile::kStages];
    float staging[Tile::kBlockM * Tile::kBlockN];  // of the epilogue, when the ring has drained
  };
  uint64_t turn;  // mbarrier: a phase for each tile of k
};

// Reads the fragments of 16 rows and 16 k of an operand's tile: the four registers of mma's A, or
// (kIsB) the two of its B for the first 8 rows, then for the others.
template <typename Layout, bool kIsB>
class FragmentReader {
 public:
  // `tile`: shared-memory address of the operand in stage 0. The warp's rows start at `row`.
  __device__ FragmentReader(uint32_t tile, int row, int lane) {
    // Which of the 16 rows' halves, and which of the 16 k's, this lane's matrix is.
    const int row_half = kIsB ? lane / 16 : lane / 8 % 2, k_half = kIsB ? lane / 8 % 2 : lane / 16;
    if constexpr (Layout::kMnMajor) {
      base_ = tile + Layout::offset(k_half * 8 + lane % 8, row / 8 + row_half);
    } else {
      base_ = tile + Layout::offset(row + row_half * 8 + lane % 8, k_half);
    }
  }

  __device__ void load(uint32_t (&fragment)[4], uint32_t stage_offset, int row16, int k16) const {
    // The swizzle is a XOR within aligned groups of chunks, so another chunk is another XOR.
    if constexpr (Layout::kMnMajor) {
      ptx::ldmatrix_x4_trans(fragment,
                             (base_ ^ row16 * 32) + k16 * 16 * Layout::kRowBytes + stage_offset);
    } else {
      ptx::ldmatrix_x4(fragment,
                       (base_ ^ k16 * 32) + row16 * 16 * Layout::kRowBytes + stage_offset);
    }
  }

 private:
  uint32_t base_;
};

// A warp's part of the tile: accumulators, and two sets of fragments, so that the tensor cores work
// on one while the other is read.
template <typename T, typename Tile, typename LayoutA, typename LayoutB>
class WarpMma {
 public:
  static constexpr int kTilesM = Tile::kWarpM / 16, kTilesN = Tile::kWarpN / 8;
  float acc[kTilesM][kTilesN][4] = {};

  __device__ WarpMma(uint32_t a, uint32_t b, int warp, int lane)
      : a_reader_(a, warp / Tile::kWarpsN * Tile::kWarpM, lane),
        b_reader_(b, warp % Tile::kWarpsN * Tile::kWarpN, lane) {}

  __device__ void load(int set, uint32_t stage_offset, int k16) {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) a_reader_.load(a_[set][i], stage_offset, i, k16);
#pragma unroll
    for (int j = 0; j < kTilesN / 2; ++j) b_reader_.load(b_[set][j], stage_offset, j, k16);
  }

  __device__ void multiply(int set) {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
        const uint32_t (&b)[4] = b_[set][j / 2];
        ptx::mma_m16n8k16<T>(acc[i][j], a_[set][i], b[j % 2 * 2], b[j % 2 * 2 + 1]);
      }
    }
  }

 private:
  FragmentReader<LayoutA, false> a_reader_;
  FragmentReader<LayoutB, true> b_reader_;
  uint32_t a_[2][kTilesM][4], b_[2][kTilesN / 2][4];
};

// What a CTA works on: the tile at (m, n) of a batch, and the part [k, k_end) of K.
struct Work {
  int64_t m, n, batch, k, k_end;
  int split;

  template <typename Tile>
  __device__ static Work at(const Params& params, int64_t index) {
    Work work;
    const int64_t per_plane = params.tiles_m * params.tiles_n;
    const int64_t plane = index / per_plane;
    // Groups of rows, column by column: CTAs that run at the same time share operands in L2.
    constexpr int64_t kGroupRows = 2048 / Tile::kBlockM;
    const int64_t in_plane = index % per_plane;
    const int64_t first = in_plane / (kGroupRows * params.tiles_n) * kGroupRows;
    const int64_t height = min(params.tiles_m - first, kGroupRows);
    const int64_t in_group = in_plane - first * params.tiles_n;
    work.m = (first + in_group % height) * Tile::kBlockM;
    work.n = in_group / height * Tile::kBlockN;
    work.batch = plane / params.splits;
    work.split = static_cast<int>(plane % params.splits);
    work.k = work.split * params.k_per_split;
    work.k_end = min(work.k + params.k_per_split, params.k);
    return work;
  }
};

template <typename T, typename Tile, bool kAMn, bool kBMn, bool kGeneral>
__global__ void __launch_bounds__(Tile::kThreads)
    gemm_kernel(const __grid_constant__ Params params) {
  using LayoutA = TileLayout<Tile::kBlockM, Tile::kBlockK, kAMn>;
  using LayoutB = TileLayout<Tile::kBlockN, Tile::kBlockK, kBMn>;
  using LoaderA = Loader<LayoutA, Tile::kBlockK, Tile::kThreads, kGeneral>;
  using LoaderB = Loader<LayoutB, Tile::kBlockK, Tile::kThreads, kGeneral>;
  using Storage = SharedStorage<Tile>;
  constexpr int kStages = Tile::kStages;
  constexpr uint32_t kStageBytes = sizeof(typename Storage::Stage);
  XGEMM_DYNAMIC_SHARED(char, raw_smem, 128);
  Storage& smem = *reinterpret_cast<Storage*>(raw_smem);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const uint32_t smem_a = ptx::smem_address(smem.ring[0].a);
  const uint32_t smem_b = ptx::smem_address(smem.ring[0].b);

  if (thread == 0) ptx::mbarrier_init(&smem.turn, Tile::kThreads / 32);
  uint32_t parity = 0;

  for (int64_t index = blockIdx.x; index < params.tiles; index += gridDim.x) {
    const Work work = Work::at<Tile>(params, index);
    LoaderA a_loader(params.a, batch_offset(params, work.batch, &BatchDim::a),
                     {work.m, params.m, work.k, work.k_end, params.k}, thread);
    LoaderB b_loader(params.b, batch_offset(params, work.batch, &BatchDim::b),
                     {work.n, params.n, work.k, work.k_end, params.k}, thread);
    WarpMma<T, Tile, LayoutA, LayoutB> mma(smem_a, smem_b, warp, lane);
    const int k_tiles =
        ceil_div(static_cast<int>(max(work.k_end - work.k, int64_t{0})), Tile::kBlockK);

    // Tile t goes to stage t % kStages. Tiles past the last one are fetched too, as zeros: a branch
    // would keep the compiler from mixing copies with mma.
    int fetched = 0;
    uint32_t write = 0, flush = 0, read = 0;  // byte offsets of stages
    const auto next = [](uint32_t stage) {
      return stage == (kStages - 1) * kStageBytes ? 0 : stage + kStageBytes;
    };
    const auto fetch = [&] {
      if constexpr (kGeneral) {  // what the last fetch left in registers goes to its stage first
        if (fetched > 0 && fetched <= k_tiles) {
          a_loader.flush(smem_a + flush);
          b_loader.flush(smem_b + flush);
        }
        if (fetched < k_tiles) {
          a_loader.fetch(smem_a + write);
          b_loader.fetch(smem_b + write);
        }
        flush = write;
        ++fetched;
      } else {
        a_loader.fetch(smem_a + write);
        b_loader.fetch(smem_b + write);
      }
      write = next(write);
      ptx::cp_async_commit_group();  // even where it is empty: groups are counted
    };

    __syncthreads();  // the last tile's epilogue has read its staging buffer
#pragma unroll 1
    for (int s = 0; s < kStages - 1; ++s) fetch();
    ptx::cp_async_wait_group<kStages - 2>();
    __syncthreads();
    mma.load(0, read, 0);
    // A warp arrives when it has read a tile and its own part of the next one has landed, half a
    // tile of mma before it waits for the others: warps may drift apart that far. The wait and the
    // loop's end also keep the compiler from reading both sets of fragments in one burst.
#pragma unroll 1
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      mma.load(1, read, 1);
      ptx::cp_async_wait_group<kStages - 3>();
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(&smem.turn);
      fetch();
      mma.multiply(0);
      ptx::mbarrier_spin(&smem.turn, parity);
      parity ^= 1;
      read = next(read);
      mma.load(0, read, 0);
      mma.multiply(1);
    }
    ptx::cp_async_wait_group<0>();
    __syncthreads();
    Epilogue<T, Tile::kWarpM, Tile::kWarpN> epilogue(
        params, smem.staging + warp * Tile::kWarpM * Tile::kWarpN, lane);
    epilogue.store(mma.acc, work.m + warp / Tile::kWarpsN * Tile::kWarpM,
                   work.n + warp % Tile::kWarpsN * Tile::kWarpN, work.batch, work.split);
  }
}

}  // namespace xgemm::cuda::gemm::sm80
