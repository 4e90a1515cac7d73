// Dense GEMM for sm_90a: TMA into a ring of shared-memory stages, wgmma out of it.
//
// Persistent CTAs of one producer warpgroup and two consumer warpgroups, which split the tile's
// rows. A cluster of two CTAs takes two tiles of the same columns and shares B by multicast. The
// epilogue of a tile runs while the producer already loads the next one.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/activation.h"
#include "common/math.h"
#include "cuda/gemm/sm90/params.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/stmatrix.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma.h"

namespace xgemm::cuda::gemm::sm90 {

// What the kernel is compiled for.
template <int kBlockM_, int kBlockN_, int kStages_, int kCluster_>
struct TileConfig {
  static constexpr int kBlockM = kBlockM_, kBlockN = kBlockN_;
  static constexpr int kStages = kStages_;
  static constexpr int kCluster = kCluster_;  // CTAs along M that share B
  static_assert(kBlockM == 64 * kConsumers, "a consumer warpgroup has the 64 rows of one wgmma");
  static_assert(kBlockN % (64 * kCluster) == 0, "a CTA loads whole 64-column boxes of B");
};

template <typename T, typename Config>
struct SharedStorage {
  alignas(1024) T a[Config::kStages][Config::kBlockM * kBlockK];
  alignas(1024) T b[Config::kStages][Config::kBlockN * kBlockK];
  alignas(1024) T d[kConsumers][2][64 * kSwizzleElements];  // two boxes a warpgroup, in turns
  uint64_t full[Config::kStages], empty[Config::kStages];
};

template <typename T, typename Config>
inline constexpr int kSmemBytes = sizeof(SharedStorage<T, Config>) + 1024;  // + alignment

struct Tile {
  int m, n, batch;  // first row, first column
};

// Walks over the tiles of a cluster, in groups of rows so that concurrent tiles share operands in
// L2.
template <typename Config>
class TileScheduler {
 public:
  __device__ TileScheduler(const Params& params, int cta_rank)
      : rows_(ceil_div(params.m, Config::kBlockM * Config::kCluster)),
        columns_(ceil_div(params.n, Config::kBlockN)),
        total_(int64_t{rows_} * columns_ * params.batch),
        cta_rank_(cta_rank),
        next_(blockIdx.x / Config::kCluster) {}

  __device__ bool next(Tile* tile) {
    if (next_ >= total_) return false;
    const int per_batch = rows_ * columns_;
    const int in_batch = next_ % per_batch;
    const int group = in_batch / (kGroupRows * columns_), first = group * kGroupRows;
    const int height = min(kGroupRows, rows_ - first);
    const int in_group = in_batch - first * columns_;
    const int row = first + in_group % height;
    tile->m = (row * Config::kCluster + cta_rank_) * Config::kBlockM;
    tile->n = in_group / height * Config::kBlockN;
    tile->batch = static_cast<int>(next_ / per_batch);
    next_ += gridDim.x / Config::kCluster;
    return true;
  }

 private:
  static constexpr int kGroupRows = 1024 * 2 / (Config::kBlockM * Config::kCluster);
  int rows_, columns_;
  int64_t total_;
  int cta_rank_;
  int64_t next_;
};

// Position in the ring: stage, and the parity of the pass over it.
template <int kStages>
struct RingState {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Loads [kRows, kBlockK] of an operand into a stage: one box where K is contiguous, else 64-wide
// boxes.
template <int kRows, bool kMnMajor, bool kMulticast, typename T>
__device__ inline void load_operand(T* dst, const CUtensorMap* map, uint64_t* full, int row, int k,
                                    int batch) {
  constexpr uint16_t kBothCtas = 3;
  if constexpr (kMnMajor) {
#pragma unroll
    for (int i = 0; i < kRows / kSwizzleElements; ++i) {
      T* box = dst + i * kSwizzleElements * kBlockK;
      const int inner = row + i * kSwizzleElements;
      if constexpr (kMulticast) {
        ptx::tma_load_multicast_3d(box, map, full, kBothCtas, inner, k, batch);
      } else {
        ptx::tma_load_3d(box, map, full, inner, k, batch);
      }
    }
  } else if constexpr (kMulticast) {
    ptx::tma_load_multicast_3d(dst, map, full, kBothCtas, k, row, batch);
  } else {
    ptx::tma_load_3d(dst, map, full, k, row, batch);
  }
}

template <typename T, typename Config, bool kAMn, bool kBMn>
__device__ inline void produce(const Params& params, SharedStorage<T, Config>& smem, int cta_rank) {
  constexpr int kShareN = Config::kBlockN / Config::kCluster;  // columns of B this CTA loads
  constexpr uint32_t kBytes = (Config::kBlockM + Config::kBlockN) * kBlockK * sizeof(T);
  TileScheduler<Config> scheduler(params, cta_rank);
  RingState<Config::kStages> ring;
  const int k_tiles = ceil_div(params.k, kBlockK);
  Tile tile;
  while (scheduler.next(&tile)) {
    const int a_batch = params.a_batched ? tile.batch : 0;
    const int b_batch = params.b_batched ? tile.batch : 0;
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      ptx::mbarrier_wait(&smem.empty[ring.stage], ring.parity ^ 1);
      uint64_t* full = &smem.full[ring.stage];
      ptx::mbarrier_arrive_expect_tx(full, kBytes);
      load_operand<Config::kBlockM, kAMn, false>(smem.a[ring.stage], &params.a, full, tile.m,
                                                 k_tile * kBlockK, a_batch);
      load_operand<kShareN, kBMn, (Config::kCluster > 1)>(
          smem.b[ring.stage] + cta_rank * kShareN * kBlockK, &params.b, full,
          tile.n + cta_rank * kShareN, k_tile * kBlockK, b_batch);
      ring.advance();
    }
  }
}

inline constexpr int kBoxBytes = kSwizzleElements * kBlockK * 2;

// Descriptor of an operand's tile of stage 0, from row (or column of B) `row`, a multiple of 64.
template <bool kMnMajor, typename T>
__device__ inline uint64_t operand_descriptor(const T* tile, int row) {
  const char* base = reinterpret_cast<const char*>(tile) + row / 64 * kBoxBytes;
  return kMnMajor ? ptx::wgmma_descriptor(base, kBoxBytes, 1024)
                  : ptx::wgmma_descriptor(base, 16, 1024);
}
// What a descriptor's address field, in units of 16 bytes, grows by over 16 k.
template <bool kMnMajor>
inline constexpr int kDescriptorStepK16 = (kMnMajor ? 16 * 128 : 32) / 16;

template <typename T>
__device__ inline T round_to(float x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

template <typename T>
__device__ inline uint32_t pack2(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

template <typename T>
__device__ inline float widen(T x) {
  return static_cast<float>(x);
}

// Writes a consumer warpgroup's accumulators: bias and activation in fp32, one rounding, then
// through shared memory by TMA, or element by element where D does not suit TMA.
template <typename T, typename Config>
class Epilogue {
 public:
  __device__ Epilogue(const Params& params, T (*staging)[64 * kSwizzleElements], int consumer,
                      int thread)
      : params_(params),
        staging_(staging),
        barrier_(1 + consumer),
        thread_(thread),
        warp_(thread / 32),
        lane_(thread % 32) {}

  // acc: [64, kBlockN] at row `m` of D, in wgmma's layout.
  __device__ void store(float (&acc)[Config::kBlockN / 2], int m, int n, int batch) {
    if (params_.bias != nullptr) add_bias(acc, n);
    if (params_.activation != Activation::kNone) apply_activation(acc);
    if (params_.tma_store) {
      store_tma(acc, m, n, batch);
    } else {
      store_elements(acc, m, n, batch);
    }
  }

 private:
  static constexpr int kColumns8 = Config::kBlockN / 8;

  __device__ void add_bias(float (&acc)[Config::kBlockN / 2], int n) const {
    const T* bias = static_cast<const T*>(params_.bias);
#pragma unroll
    for (int j = 0; j < kColumns8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = n + j * 8 + lane_ % 4 * 2 + e;
        const float value = column < params_.n ? widen(bias[column * params_.bias_stride]) : 0.0f;
        acc[4 * j + e] += value;
        acc[4 * j + 2 + e] += value;
      }
    }
  }

  __device__ void apply_activation(float (&acc)[Config::kBlockN / 2]) const {
#pragma unroll
    for (int i = 0; i < Config::kBlockN / 2; ++i) acc[i] = activate(params_.activation, acc[i]);
  }

  __device__ void store_tma(const float (&acc)[Config::kBlockN / 2], int m, int n, int batch) {
    const int matrix = lane_ / 8, row = warp_ * 16 + matrix % 2 * 8 + lane_ % 8;
#pragma unroll
    for (int box = 0; box < Config::kBlockN / kSwizzleElements; ++box) {
      T* staging = staging_[box % 2];
      if (thread_ == 0) ptx::bulk_wait_group_read<1>();
      ptx::named_barrier_sync(barrier_, kWarpgroup);  // the buffer's last store has read it
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const float* d = acc + (box * 8 + j) * 4;
        // XOR the row into the 16-byte column: TMA's 128-byte swizzle, and no bank conflicts.
        const int chunk = (j + matrix / 2) ^ (row % 8);
        ptx::stmatrix_x4(staging + row * kSwizzleElements + chunk * 8, pack2<T>(d[0], d[1]),
                         pack2<T>(d[2], d[3]), pack2<T>(d[4], d[5]), pack2<T>(d[6], d[7]));
      }
      ptx::fence_proxy_async();
      ptx::named_barrier_sync(barrier_, kWarpgroup);
      if (thread_ == 0) {
        const int column = n + box * kSwizzleElements;
        if (m < params_.m && column < params_.n) {
          ptx::tma_store_3d(&params_.d, staging, column, m, batch);
        }
        ptx::bulk_commit_group();
      }
    }
  }

  __device__ void store_elements(const float (&acc)[Config::kBlockN / 2], int m, int n, int batch) {
    T* d = static_cast<T*>(params_.d_data) + batch * params_.d_batch_stride;
#pragma unroll
    for (int j = 0; j < kColumns8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = m + warp_ * 16 + lane_ / 4 + i / 2 * 8;
        const int column = n + j * 8 + lane_ % 4 * 2 + i % 2;
        if (row < params_.m && column < params_.n) {
          d[row * params_.d_row_stride + column * params_.d_col_stride] =
              round_to<T>(acc[4 * j + i]);
        }
      }
    }
  }

  const Params& params_;
  T (*staging_)[64 * kSwizzleElements];
  int barrier_, thread_, warp_, lane_;
};

template <typename T, typename Config, bool kAMn, bool kBMn>
__device__ inline void consume(const Params& params, SharedStorage<T, Config>& smem, int cta_rank,
                               int consumer, int thread) {
  TileScheduler<Config> scheduler(params, cta_rank);
  RingState<Config::kStages> ring;
  Epilogue<T, Config> epilogue(params, smem.d[consumer], consumer, thread);
  const int k_tiles = ceil_div(params.k, kBlockK);
  // Every CTA that receives this CTA's B, itself included, must know that the stage has been read.
  const auto release = [&](int stage) {
    if constexpr (Config::kCluster == 1) {
      if (thread == 0) ptx::mbarrier_arrive(&smem.empty[stage]);
    } else {
      if (thread < Config::kCluster) ptx::mbarrier_arrive_cluster(&smem.empty[stage], thread);
    }
  };
  const uint64_t a_base = operand_descriptor<kAMn>(smem.a[0], consumer * 64);
  const uint64_t b_base = operand_descriptor<kBMn>(smem.b[0], 0);
  float acc[Config::kBlockN / 2];
  Tile tile;
  while (scheduler.next(&tile)) {
    int previous = 0;
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      ptx::mbarrier_wait(&smem.full[ring.stage], ring.parity);
      ptx::wgmma_fence();
      const uint64_t a_stage = a_base + ring.stage * static_cast<int>(sizeof(smem.a[0]) / 16);
      const uint64_t b_stage = b_base + ring.stage * static_cast<int>(sizeof(smem.b[0]) / 16);
#pragma unroll
      for (int k16 = 0; k16 < kBlockK / 16; ++k16) {
        ptx::wgmma<T, kAMn, kBMn>(acc, a_stage + k16 * kDescriptorStepK16<kAMn>,
                                  b_stage + k16 * kDescriptorStepK16<kBMn>, k_tile > 0 || k16 > 0);
      }
      ptx::wgmma_commit_group();
      if (k_tile > 0) {
        ptx::wgmma_wait_group<1>();  // the previous stage has been read
        release(previous);
      }
      previous = ring.stage;
      ring.advance();
    }
    ptx::wgmma_wait_group<0>();
    release(previous);
    epilogue.store(acc, tile.m + consumer * 64, tile.n, tile.batch);
  }
  if (thread == 0) ptx::bulk_wait_group_read<0>();  // shared memory outlives the stores
}

template <typename T, typename Config, bool kAMn, bool kBMn>
__global__ void __launch_bounds__(kThreads, 1) gemm_kernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t raw[];
  auto& smem = *reinterpret_cast<SharedStorage<T, Config>*>(
      raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  // From lane 0, so that the compiler knows it to be the same for the whole warp.
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  const int thread = threadIdx.x % kWarpgroup;
  const int cta_rank = Config::kCluster > 1 ? static_cast<int>(ptx::cluster_cta_rank()) : 0;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      ptx::mbarrier_init(&smem.full[stage], 1);
      ptx::mbarrier_init(&smem.empty[stage], kConsumers * Config::kCluster);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (Config::kCluster > 1) {  // no CTA sends to another before its barriers stand
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread == 0) produce<T, Config, kAMn, kBMn>(params, smem, cta_rank);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume<T, Config, kAMn, kBMn>(params, smem, cta_rank, warpgroup - 1, thread);
  }
  if constexpr (Config::kCluster > 1) {  // a CTA's shared memory outlives what others send to it
    __syncwarp();
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
#endif
}

}  // namespace xgemm::cuda::gemm::sm90
