// One small kernel for each of the shared parts of csrc/cuda/tile, shown to pytest.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <tuple>
#include <vector>

#include "cuda/launch.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/shared_memory.h"
#include "cuda/tile/accumulators.cuh"
#include "cuda/tile/cluster_reduction.cuh"
#include "cuda/tile/layout_index.h"
#include "cuda/tile/pipeline_state.cuh"
#include "cuda/tile/split_k.cuh"
#include "cuda/tile/store_quad.cuh"
#include "cuda/tile/stream_k.cuh"
#include "cuda/tile/wait_for_copies.cuh"

namespace bind_tile_parts {

namespace py = pybind11;
namespace cuda = xgemm::cuda;
namespace ptx = xgemm::ptx;

namespace {

constexpr int kSize = 24;  // accumulators of a thread: 48 columns
constexpr int kQuads = kSize / 4, kThreads = 32;

struct Args {
  const float* in = nullptr;  // [CTAs, threads, kSize]
  float* out = nullptr;
  int activation = 0, parts = 0;
  int64_t stride = 0;
  uint64_t* flags = nullptr;
  float4* left = nullptr;
};

__device__ void load(float (&acc)[kSize], const Args& args) {
  const float* from = args.in + (blockIdx.x * kThreads + threadIdx.x) * kSize;
  for (int i = 0; i < kSize; ++i) acc[i] = from[i];
}
__device__ void store(const float (&acc)[kSize], const Args& args) {
  float* to = args.out + (blockIdx.x * kThreads + threadIdx.x) * kSize;
  for (int i = 0; i < kSize; ++i) to[i] = acc[i];
}

template <int kStep>
__global__ void activate(const Args args) {
  float acc[kSize];
  load(acc, args);
  cuda::activate_in_turns<kStep>(static_cast<xgemm::Activation>(args.activation), acc);
  store(acc, args);
}

__global__ void add_rows(const Args args) {
  float acc[kSize];
  load(acc, args);
  cuda::add_to_rows(acc, 100.0f, 200.0f);
  store(acc, args);
}

// Each of a cluster's two CTAs finishes half of the quads, and has nothing of the others.
__global__ void reduce_over_cluster(const Args args) {
  XGEMM_STATIC_SHARED(uint64_t, received);
  XGEMM_DYNAMIC_SHARED(float4, inbox, 128);
  constexpr int kHalf = kQuads / 2;
  float acc[kSize];
  load(acc, args);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&received, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(&received, kHalf * kThreads * 16);
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
  const int other = 1 - static_cast<int>(ptx::cluster_cta_rank());
  const uint32_t to = ptx::mapa(ptx::smem_address(inbox + threadIdx.x), other);
  const uint32_t signal = ptx::mapa(ptx::smem_address(&received), other);
  constexpr int kStride = kThreads * 16;
  if (other == 1) {
    cuda::send_quads<kHalf, kQuads>(to, kStride, signal, acc);
  } else {
    cuda::send_quads<0, kHalf>(to, kStride, signal, acc);
  }
  ptx::mbarrier_wait(&received, 0);
  if (other == 1) {
    cuda::add_received_quads<0, kHalf>(acc, inbox + threadIdx.x, kThreads);
    for (int i = kSize / 2; i < kSize; ++i) acc[i] = 0;
  } else {
    cuda::add_received_quads<kHalf, kQuads>(acc, inbox + threadIdx.x, kThreads);
    for (int i = 0; i < kSize / 2; ++i) acc[i] = 0;
  }
  store(acc, args);
}

// CTA 0 leaves its sums, CTA 1 completes its own by them.
__global__ void fix_up(const Args args) {
  constexpr uint64_t kNonce = 7;
  float acc[kSize];
  load(acc, args);
  if (blockIdx.x == 0) {
    cuda::leave_sums(args.left + threadIdx.x, kThreads, acc);
    __syncthreads();
    if (threadIdx.x == 0) ptx::st_release_gpu(args.flags, kNonce);
  } else {
    if (threadIdx.x == 0) cuda::take_down_flag(args.flags, kNonce);
    __syncthreads();
    for (int j = 0; j < kQuads; ++j) {
      cuda::add_quad(acc, j, ptx::ld_global_cg(args.left + j * kThreads + threadIdx.x));
    }
  }
  store(acc, args);
}

// out: quads of the sums of args.parts parts, args.stride floats apart.
__global__ void add_parts(const Args args, int64_t quads) {
  cuda::for_each_quad<kThreads>(quads, [&](int64_t i) {
    float sum[4] = {};
    cuda::add_parts_of_quad<2>(sum, args.in + i * 4, args.stride, args.parts);
    for (int j = 0; j < 4; ++j) args.out[i * 4 + j] += sum[j];
  });
}

// A thread's four columns of a row of D: rows lie `row_stride` apart, columns `stride`.
struct QuadArgs {
  const float* in;     // [threads, 4]
  const __half* bias;  // or null
  __half* out;
  int64_t row_stride, stride, count;
  bool vector;
  int activation;
};
__global__ void finish_quads(const QuadArgs args) {
  float x[4];
  for (int i = 0; i < 4; ++i) x[i] = args.in[threadIdx.x * 4 + i];
  cuda::finish_quad<__half>({.to = args.out + threadIdx.x * args.row_stride,
                             .stride = args.stride,
                             .count = args.count,
                             .vector = args.vector},
                            x, args.bias, 1, static_cast<xgemm::Activation>(args.activation));
}

// out: of four groups of copies, [4, threads, 4] floats, those that must have landed while
// args.parts of them may be under way; the others are not read.
__global__ void copy_groups(const Args args) {
  XGEMM_DYNAMIC_SHARED(float4, stages, 128);
  for (int stage = 0; stage < 4; ++stage) {
    const int at = stage * kThreads + threadIdx.x;
    ptx::cp_async<16>(ptx::smem_address(stages + at), args.in + at * 4, 16);
    ptx::cp_async_commit_group();
  }
  cuda::wait_for_copies<3>(args.parts);
  auto* out = reinterpret_cast<float4*>(args.out);
  for (int stage = 0; stage < 4 - args.parts; ++stage) {
    out[stage * kThreads + threadIdx.x] = stages[stage * kThreads + threadIdx.x];
  }
  ptx::cp_async_wait_group<0>();
}

using Kernel = void (*)(Args);

void check(const xgemm::Status& status) {
  if (!status.ok()) throw std::runtime_error(cudaGetErrorString(status.error));
}

void run(Kernel kernel, const Args& args, unsigned blocks, unsigned cluster = 1) {
  check(cuda::launch_grid("a part",
                          {.blocks = dim3(blocks),
                           .threads = dim3(kThreads),
                           .shared_bytes = kSize * kThreads * 4,
                           .cluster = dim3(cluster)},
                          kernel, args));
}

Args args_of(uintptr_t in, uintptr_t out) {
  Args args;
  args.in = reinterpret_cast<const float*>(in), args.out = reinterpret_cast<float*>(out);
  return args;
}

template <typename State>
std::vector<std::pair<int, uint32_t>> walk(State state, int steps) {
  std::vector<std::pair<int, uint32_t>> seen;
  for (int i = 0; i < steps; ++i, state.advance()) seen.emplace_back(state.stage, state.parity);
  return seen;
}

// Of a consumer that has every `period`-th of the stages from `first` on.
template <int kStages>
std::vector<std::pair<int, uint32_t>> walk_by(uint32_t first, int period, int steps) {
  std::vector<std::pair<int, uint32_t>> seen;
  auto state = cuda::PipelineState<kStages>::after(first);
  for (int i = 0; i < steps; ++i, state.advance(period)) {
    seen.emplace_back(state.stage, state.parity);
  }
  return seen;
}

template <typename Index>
std::vector<std::pair<Index, Index>> places(Index tiles_m, Index tiles_n, Index group_rows) {
  std::vector<std::pair<Index, Index>> found;
  for (Index i = 0; i < tiles_m * tiles_n; ++i) {
    const auto place = cuda::layout::grouped_tile(i, tiles_m, tiles_n, group_rows);
    found.emplace_back(place.row, place.column);
  }
  return found;
}

}  // namespace

void define(py::module_& m) {
  m.attr("TILE_SIZE") = kSize;
  m.attr("TILE_THREADS") = kThreads;
  m.def("tile_activate", [](uintptr_t in, uintptr_t out, int activation, int step) {
    Args args = args_of(in, out);
    args.activation = activation;
    run(step == 1 ? activate<1> : step == 4 ? activate<4> : activate<8>, args, 1);
  });
  m.def("tile_add_rows", [](uintptr_t in, uintptr_t out) { run(add_rows, args_of(in, out), 1); });
  m.def("tile_cluster_reduction",
        [](uintptr_t in, uintptr_t out) { run(reduce_over_cluster, args_of(in, out), 2, 2); });
  m.def("tile_fix_up", [](uintptr_t in, uintptr_t out, uintptr_t left, uintptr_t flags) {
    Args args = args_of(in, out);
    args.left = reinterpret_cast<float4*>(left), args.flags = reinterpret_cast<uint64_t*>(flags);
    run(fix_up, args, 2);
  });
  m.def("tile_add_parts",
        [](uintptr_t in, uintptr_t out, int parts, int64_t stride, int64_t quads) {
          Args args = args_of(in, out);
          args.parts = parts, args.stride = stride;
          check(cuda::launch_grid(
              "parts",
              {.blocks = dim3(cuda::blocks_of_quads<kThreads>(quads)), .threads = dim3(kThreads)},
              add_parts, args, quads));
        });
  m.def("tile_finish_quads", [](uintptr_t in, uintptr_t bias, uintptr_t out, int64_t row_stride,
                                int64_t stride, int64_t count, bool vector, int activation) {
    const QuadArgs args{reinterpret_cast<const float*>(in),
                        reinterpret_cast<const __half*>(bias),
                        reinterpret_cast<__half*>(out),
                        row_stride,
                        stride,
                        count,
                        vector,
                        activation};
    check(cuda::launch_grid("quads", {.blocks = dim3(1), .threads = dim3(kThreads)}, finish_quads,
                            args));
  });
  m.def("tile_copy_groups", [](uintptr_t in, uintptr_t out, int pending) {
    Args args = args_of(in, out);
    args.parts = pending;
    run(copy_groups, args, 1);
  });
  m.def("tile_range_begin", &cuda::even_range_begin);
  m.def("tile_pipeline", [](int stages, int steps) {
    if (stages == 3) return walk(cuda::PipelineState<3>{}, steps);
    return walk(cuda::DynamicPipelineState{stages}, steps);
  });
  m.def("tile_pipeline_by", &walk_by<6>);
  m.def("tile_places", &places<uint32_t>);
}

}  // namespace bind_tile_parts
