// fp32 products on Hopper's TF32 tensor cores: TMA into a pipeline of stages, X from there to
// registers and Y by descriptors to wgmma. With one product X goes by descriptors, too, where it
// lies along k.
//
// With three products each operand is the sum of two TF32 numbers: the consumers split X in
// registers, three warps split Y in shared memory, and a_small b_small is left out. Tensor cores
// round their sums towards zero, which would add up over K, so sums over 16 or 8 k, the small
// products first, are added to the accumulators by the FP32 cores.
#pragma once

#include "common/math.h"
#include "cuda/gemm/tf32/sm90/epilogue.cuh"
#include "cuda/gemm/tf32/sm90/operands.cuh"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/setmaxnreg.h"
#include "cuda/ptx/tma.h"
#include "cuda/shared_memory.h"
#include "cuda/tile/pipeline_state.cuh"

namespace xgemm::cuda::gemm::tf32::sm90 {

inline constexpr int kConsumerWarps = kConsumers * kWarpgroup / 32;
inline constexpr int kSplitters = 3 * 32;  // threads

template <typename Tile>
struct SharedStorage {
  static constexpr int kSmallStages = Tile::kThree ? Tile::kStages : 1;
  static constexpr int kSmallFloats = Tile::kThree ? Tile::kColumns * kBlockK : 1;
  alignas(1024) float x[Tile::kStages][Tile::kRows * kBlockK];
  alignas(1024) float y[Tile::kStages][Tile::kColumns * kBlockK];  // split: the big parts
  alignas(1024) float y_small[kSmallStages][kSmallFloats];
  uint64_t full[Tile::kStages], split[Tile::kStages], empty[Tile::kStages];
};

template <typename Tile>
inline constexpr int kSmemBytes = sizeof(SharedStorage<Tile>) + 1024;  // + alignment

// Walks over a CTA's work tiles; all roles see the same ones.
template <typename Tile>
class Scheduler {
 public:
  __device__ explicit Scheduler(const Params& params)
      : params_(params), next_(static_cast<int>(blockIdx.x)) {}

  __device__ bool next(WorkTile* work_tile) {
    if (next_ >= params_.work_tiles) return false;
    const int per_plane = params_.tiles_x * params_.tiles_y;
    const int plane = next_ / per_plane, in_plane = next_ % per_plane;
    constexpr int kGroupRows = 2048 / Tile::kRows;
    const layout::Place place =
        layout::grouped_tile(in_plane, params_.tiles_x, params_.tiles_y, kGroupRows);
    work_tile->x = place.row * Tile::kRows;
    work_tile->y = place.column * Tile::kColumns;
    work_tile->batch = plane / params_.splits;
    work_tile->split = plane % params_.splits;
    next_ += gridDim.x;
    return true;
  }

  __device__ int k_tiles(const WorkTile& work_tile) const {
    return min(params_.k_tiles - work_tile.split * params_.k_tiles_per_split,
               params_.k_tiles_per_split);
  }

 private:
  const Params& params_;
  int next_;
};

// One thread that keeps the pipeline full.
template <typename Tile, bool kXAlongRows>
__device__ inline void produce(const Params& params, SharedStorage<Tile>& smem) {
  constexpr uint32_t kBytes = (Tile::kRows + Tile::kColumns) * kBlockK * 4;
  Scheduler<Tile> scheduler(params);
  PipelineState<Tile::kStages> state;
  WorkTile work_tile;
  while (scheduler.next(&work_tile)) {
    const int k_tiles = scheduler.k_tiles(work_tile);
    int k = work_tile.split * params.k_tiles_per_split * kBlockK;
    const int x_batch = params.x_batched ? work_tile.batch : 0;
    const int y_batch = params.y_batched ? work_tile.batch : 0;
#pragma unroll 1
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, k += kBlockK, state.advance()) {
      ptx::mbarrier_wait(&smem.empty[state.stage], state.parity ^ 1);
      uint64_t* full = &smem.full[state.stage];
      ptx::mbarrier_arrive_expect_tx(full, kBytes);
      float* x = smem.x[state.stage];
      if constexpr (kXAlongRows) {
#pragma unroll 1
        for (int row = 0; row < Tile::kRows; row += kBoxRows) {
          ptx::tma_load_3d(x + row * kBlockK, &params.x, full, work_tile.x + row, k, x_batch);
        }
      } else {
        ptx::tma_load_3d(x, &params.x, full, k, work_tile.x, x_batch);
      }
      ptx::tma_load_3d(smem.y[state.stage], &params.y, full, k, work_tile.y, y_batch);
    }
  }
}

// Splits Y's tiles where they lie: element by element, so that the swizzle does not matter.
template <typename Tile>
__device__ inline void split_y(const Params& params, SharedStorage<Tile>& smem, int thread) {
  constexpr int kQuads = Tile::kColumns * kBlockK / 4;
  Scheduler<Tile> scheduler(params);
  PipelineState<Tile::kStages> state;
  WorkTile work_tile;
  while (scheduler.next(&work_tile)) {
    const int k_tiles = scheduler.k_tiles(work_tile);
#pragma unroll 1
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, state.advance()) {
      ptx::mbarrier_wait(&smem.full[state.stage], state.parity);
      auto* y = reinterpret_cast<float4*>(smem.y[state.stage]);
      auto* y_small = reinterpret_cast<float4*>(smem.y_small[state.stage]);
#pragma unroll 2
      for (int i = thread; i < kQuads; i += kSplitters) {
        const float4 value = y[i];
        float4 big, small;
        split(value.x, &big.x, &small.x), split(value.y, &big.y, &small.y);
        split(value.z, &big.z, &small.z), split(value.w, &big.w, &small.w);
        y[i] = big, y_small[i] = small;
      }
      ptx::fence_proxy_async();
      __syncwarp();
      if (thread % 32 == 0) ptx::mbarrier_arrive(&smem.split[state.stage]);
    }
  }
}

// The two consumers issue their products in turn: while one adds its sums and splits X the tensor
// cores are the other's. Else both might do either at the same time.
class PingPong {
 public:
  __device__ explicit PingPong(int consumer) : consumer_(consumer) {
    if (consumer == 1) give();
  }
  __device__ void take() { ptx::named_barrier_sync(kFirstBarrier + consumer_, kThreadsOfBoth); }
  __device__ void give() {
    ptx::named_barrier_arrive(kFirstBarrier + 1 - consumer_, kThreadsOfBoth);
  }
  // What consumer 1 gave last; no barrier is left half-way.
  __device__ void finish() {
    if (consumer_ == 0) take();
  }

 private:
  static constexpr int kFirstBarrier = 1, kThreadsOfBoth = kConsumers * kWarpgroup;
  static_assert(kConsumers == 2);
  int consumer_;
};

template <typename Tile, bool kXAlongRows>
class Consumer {
  static constexpr int kCount = Tile::kColumns / 2;
  static constexpr int kYStep = Tile::kColumns * kBlockK * 4 / 16;  // of a descriptor, a stage
  static constexpr int kXStep = Tile::kRows * kBlockK * 4 / 16;
  // Of 16 k's sums: two, of 8 k each, where registers allow it. They are rounded less often, which
  // small products want: cuBLAS is more exact there, too, as it splits K.
  static constexpr int kParts = Tile::kSubs == 1 && kCount <= 64 ? 2 : 1;

 public:
  float acc[Tile::kSubs][kCount];

  __device__ Consumer(SharedStorage<Tile>& smem, int consumer, int thread)
      : smem_(smem),
        reader_(consumer, thread),
        lane_(thread % 32),
        x_base_(k_descriptor(smem.x[0] + consumer * 64 * kBlockK)),
        y_base_(k_descriptor(smem.y[0])),
        y_small_base_(k_descriptor(smem.y_small[0])) {}

  // acc = X Y^T over `k_tiles`. What the epilogue holds of the tile before is stored meanwhile.
  __device__ void accumulate(int k_tiles, PingPong& ping_pong,
                             Epilogue<Tile, kXAlongRows>& epilogue) {
    if constexpr (Tile::kThree) {
#pragma unroll
      for (int sub = 0; sub < Tile::kSubs; ++sub) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) acc[sub][i] = 0.0f;
      }
#pragma unroll 1
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile) step_three(ping_pong);
    } else {
      int k_tile = 0;
      if (epilogue.pending()) {
        store_under_steps<0>(k_tiles, epilogue);
        epilogue.stored();
        k_tile = epilogue.kBoxes;
      }
#pragma unroll 1
      for (; k_tile + 1 < k_tiles; k_tile += 2) {
        step_one<0>(k_tile > 0);
        step_one<1>(true);
      }
      if (k_tile < k_tiles) step_one<0>(k_tile > 0);
      ptx::wgmma_wait_group<0>();
      release(previous_);
    }
  }

 private:
  template <int kBox>
  __device__ void store_under_steps(int k_tiles, Epilogue<Tile, kXAlongRows>& epilogue) {
    if constexpr (kBox < Epilogue<Tile, kXAlongRows>::kBoxes) {
      if (kBox < k_tiles) step_one<kBox % 2>(kBox > 0);
      epilogue.template store_box<kBox>();
      store_under_steps<kBox + 1>(k_tiles, epilogue);
    }
  }

  // 64 rows by 16 k at a time.
  __device__ void step_three(PingPong& ping_pong) {
    ptx::mbarrier_wait(&smem_.full[state_.stage], state_.parity);
    ptx::mbarrier_wait(&smem_.split[state_.stage], state_.parity);
    const float* x = smem_.x[state_.stage];
    const uint64_t y = y_base_ + state_.stage * kYStep,
                   y_small = y_small_base_ + state_.stage * kYStep;
    float raw[2][4];
    reader_.load(raw[0], x, 0, 0);
    reader_.load(raw[1], x, 0, 1);
#pragma unroll
    for (int step = 0; step < 2 * Tile::kSubs; ++step) {
      const int sub = step / 2, k8 = step % 2 * 2;
      float big[2][4], small[2][4], part[kParts][kCount];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        split(raw[i / 4][i % 4], &big[i / 4][i % 4], &small[i / 4][i % 4]);
      ping_pong.take();
      ptx::wgmma_fence();
#pragma unroll
      for (int product = 0; product < 3; ++product) {  // the small ones first
        const uint64_t base = product == 1 ? y_small : y;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::wgmma_tf32(part[i % kParts], product == 0 ? small[i] : big[i],
                          base + (k8 + i) * kDescriptorStepK8, product > 0 || i >= kParts);
        }
      }
      ptx::wgmma_commit_group();
      ping_pong.give();
      if (step + 1 < 2 * Tile::kSubs) {  // under the products
        reader_.load(raw[0], x, (step + 1) / 2, (step + 1) % 2 * 2);
        reader_.load(raw[1], x, (step + 1) / 2, (step + 1) % 2 * 2 + 1);
      }
      ptx::wgmma_wait_group<0>();
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        acc[sub][i] += kParts == 1 ? part[0][i] : part[0][i] + part[kParts - 1][i];
      }
    }
    release(state_.stage);
    state_.advance();
  }

  // Issues the next stage's products, and gives the stage before back once it has been read. kSet:
  // the registers of X, in turn.
  template <int kSet>
  __device__ void step_one(bool accumulate) {
    ptx::mbarrier_wait(&smem_.full[state_.stage], state_.parity);
    if constexpr (kXAlongRows) {
#pragma unroll
      for (int k8 = 0; k8 < kBlockK / 8; ++k8) {
        reader_.load(x_[kSet][k8], smem_.x[state_.stage], 0, k8);
      }
    }
    const uint64_t x = x_base_ + state_.stage * kXStep, y = y_base_ + state_.stage * kYStep;
    ptx::wgmma_fence();
#pragma unroll
    for (int k8 = 0; k8 < kBlockK / 8; ++k8) {
      const bool add = accumulate || k8 > 0;
      const uint64_t y8 = y + k8 * kDescriptorStepK8;
      if constexpr (kXAlongRows) {
        ptx::wgmma_tf32(acc[0], x_[kSet][k8], y8, add);
      } else {
        ptx::wgmma_tf32(acc[0], x + k8 * kDescriptorStepK8, y8, add);
      }
    }
    ptx::wgmma_commit_group();
    if (accumulate) {
      ptx::wgmma_wait_group<1>();
      release(previous_);
    }
    previous_ = state_.stage;
    state_.advance();
  }

  // By every warp, as X is read by each for itself.
  __device__ void release(int stage) {
    if (lane_ == 0) ptx::mbarrier_arrive(&smem_.empty[stage]);
  }

  SharedStorage<Tile>& smem_;
  XReader<Tile, kXAlongRows> reader_;
  int lane_;
  uint64_t x_base_, y_base_, y_small_base_;
  PipelineState<Tile::kStages> state_;
  int previous_ = 0;
  float x_[2][kBlockK / 8][4];
};

template <typename Tile, bool kXAlongRows>
__device__ inline void consume(const Params& params, SharedStorage<Tile>& smem, int index,
                               int thread) {
  Scheduler<Tile> scheduler(params);
  Consumer<Tile, kXAlongRows> consumer(smem, index, thread);
  Epilogue<Tile, kXAlongRows> epilogue(params, {index, thread}, thread % 32);
  PingPong ping_pong(index);
  WorkTile work_tile;
  while (scheduler.next(&work_tile)) {
    consumer.accumulate(scheduler.k_tiles(work_tile), ping_pong, epilogue);
    epilogue.store(consumer.acc[0], work_tile, 0);
    if constexpr (Tile::kSubs == 2) epilogue.store(consumer.acc[1], work_tile, 1);
  }
  epilogue.store_rest();
  ping_pong.finish();
}

template <typename Tile, bool kXAlongRows>
__global__ void __launch_bounds__(kThreads, 1) gemm_kernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 1);
  auto& smem =
      *reinterpret_cast<SharedStorage<Tile>*>(raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  // From lane 0, so that the compiler knows it to be the same for the whole warp.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int thread = threadIdx.x % kWarpgroup;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(&params.x);
    ptx::prefetch_tensormap(&params.y);
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      ptx::mbarrier_init(&smem.full[stage], 1);
      ptx::mbarrier_init(&smem.split[stage], kSplitters / 32);
      ptx::mbarrier_init(&smem.empty[stage], kConsumerWarps);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warp < kWarpgroup / 32) {
    ptx::setmaxnreg_dec<24>();
    if (warp == 0 && ptx::elect_one()) produce<Tile, kXAlongRows>(params, smem);
    if constexpr (Tile::kThree) {
      if (warp > 0) split_y(params, smem, thread - 32);
    }
  } else {
    ptx::setmaxnreg_inc<240>();
    consume<Tile, kXAlongRows>(params, smem, warp / 4 - 1, thread);
  }
#endif
}

}  // namespace xgemm::cuda::gemm::tf32::sm90
