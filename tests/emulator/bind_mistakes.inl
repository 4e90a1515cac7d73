// Kernels with one mistake each, which the emulator must find; a few are right without it.
#include <cudaTypedefs.h>
#include <cuda_fp16.h>
#include <pybind11/pybind11.h>

#include <map>
#include <stdexcept>
#include <string>

#include "cuda/launch.h"
#include "cuda/ptx/cp_async.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/tma.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/shared_memory.h"

namespace bind_mistakes {

namespace py = pybind11;
namespace ptx = xgemm::ptx;

namespace {

constexpr int kThreads = 128;
constexpr int kBytes = 16 << 10;  // of dynamic shared memory

// data: [kThreads] floats. What is right writes out[i] = data[(i + 1) % kThreads].
struct Args {
  const float* data;
  float* out;
  bool mistake;
  CUtensorMap map;  // data as [4, 32]: boxes of a row, no swizzle
};

__global__ void shared_without_sync(const Args args) {
  XGEMM_DYNAMIC_SHARED(float, values, 16);
  values[threadIdx.x] = args.data[threadIdx.x];
  if (!args.mistake) __syncthreads();
  args.out[threadIdx.x] = values[(threadIdx.x + 1) % kThreads];
}

__global__ void copy_without_wait(const Args args) {
  XGEMM_DYNAMIC_SHARED(float, values, 16);
  ptx::cp_async<4>(ptx::smem_address(values + threadIdx.x), args.data + threadIdx.x, 4);
  ptx::cp_async_commit_group();
  if (!args.mistake) ptx::cp_async_wait_group<0>();
  __syncthreads();
  args.out[threadIdx.x] = values[(threadIdx.x + 1) % kThreads];
  ptx::cp_async_wait_group<0>();
}

// The phase is awaited, or (mistake) the one before it.
__global__ void load_without_wait(const Args args) {
  XGEMM_DYNAMIC_SHARED(float, values, 128);
  XGEMM_STATIC_SHARED(uint64_t, barrier);
  if (threadIdx.x == 0) ptx::mbarrier_init(&barrier, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_tx(&barrier, kThreads * 4);
    for (int row = 0; row < 4; ++row) {
      ptx::tma_load_3d(values + row * 32, &args.map, &barrier, 0, 0, row, 0);
    }
  }
  ptx::mbarrier_wait(&barrier, args.mistake ? 1 : 0);
  args.out[threadIdx.x] = values[(threadIdx.x + 1) % kThreads];
  ptx::mbarrier_wait(&barrier, 0);
}

// The buffer is written again when the store has read it, or (mistake) at once.
__global__ void store_without_wait(const Args args) {
  XGEMM_DYNAMIC_SHARED(float, values, 128);
  values[threadIdx.x] = args.data[(threadIdx.x + 1) % kThreads];
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int row = 0; row < 4; ++row)
      xgemm::emulator::tma_store(&args.map, values + row * 32, {0, row, 0});
    ptx::bulk_commit_group();
    if (!args.mistake) ptx::bulk_wait_group_read<0>();
  }
  __syncthreads();
  values[threadIdx.x] = 0;
  if (threadIdx.x == 0) ptx::bulk_wait_group_read<0>();
}

__global__ void exit_before_store(const Args args) {
  XGEMM_DYNAMIC_SHARED(float, values, 128);
  if (threadIdx.x != 0) return;
  xgemm::emulator::tma_store(&args.map, values, {0, 0, 0});
  ptx::bulk_commit_group();
  if (!args.mistake) ptx::bulk_wait_group_read<0>();
}

__global__ void inner_coordinate(const Args args) {
  XGEMM_DYNAMIC_SHARED(float, values, 128);
  XGEMM_STATIC_SHARED(uint64_t, barrier);
  if (threadIdx.x != 0) return;
  ptx::mbarrier_init(&barrier, 1);
  ptx::mbarrier_arrive_expect_tx(&barrier, 128);
  ptx::tma_load_3d(values, &args.map, &barrier, 0, args.mistake ? 1 : 4, 0, 0);
  ptx::mbarrier_wait(&barrier, 0);
}

__global__ void barrier_without_arrival(const Args args) {
  XGEMM_STATIC_SHARED(uint64_t, barrier);
  if (threadIdx.x == 0) ptx::mbarrier_init(&barrier, args.mistake ? 2 : 1);
  __syncthreads();
  if (threadIdx.x == 0) ptx::mbarrier_arrive(&barrier);
  ptx::mbarrier_wait(&barrier, 0);
}

__global__ void barrier_without_init(const Args args) {
  XGEMM_STATIC_SHARED(uint64_t, barrier);
  if (threadIdx.x == 0 && !args.mistake) ptx::mbarrier_init(&barrier, kThreads);
  __syncthreads();
  ptx::mbarrier_arrive(&barrier);
}

__global__ void named_barrier(const Args args) {
  if (threadIdx.x < 64) ptx::named_barrier_sync(1, args.mistake ? 96 : 64);
}

__global__ void partial_warp(const Args args) {
  if (threadIdx.x % 32 < 16) args.out[0] = __shfl_xor_sync(args.mistake ? ~0u : 0xffff, 1.0f, 1);
}

__global__ void read_beyond(const Args args) {
  const int i = static_cast<int>(threadIdx.x) + (args.mistake ? 1 : 0);
  args.out[threadIdx.x] = args.data[i];
}

__global__ void read_before(const Args args) {
  const int i = static_cast<int>(threadIdx.x) - (args.mistake ? 1 : 0);
  args.out[threadIdx.x] = args.data[i];
}

__global__ void write_before(const Args args) {
  args.out[static_cast<int>(threadIdx.x) - (args.mistake ? 1 : 0)] = args.data[threadIdx.x];
}

__global__ void write_input(const Args args) {
  args.out[threadIdx.x] = args.data[threadIdx.x];
  if (args.mistake) const_cast<float*>(args.data)[threadIdx.x] = 0.0f;
}

__global__ void misaligned(const Args args) {
  const auto* from = reinterpret_cast<const float4*>(args.data + (args.mistake ? 1 : 4));
  if (threadIdx.x == 0) *reinterpret_cast<float4*>(args.out) = *from;
}

__global__ void shared_beyond(const Args args) {
  XGEMM_DYNAMIC_SHARED(char, bytes, 16);
  if (threadIdx.x == 0) bytes[args.mistake ? kBytes : kBytes - 1] = 0;
}

__global__ void gone_block(const Args args) {
  XGEMM_STATIC_SHARED(uint64_t, barrier);
  ptx::mbarrier_init(&barrier, kThreads);
  ptx::cluster_arrive();
  ptx::cluster_wait();
  if (ptx::cluster_cta_rank() == 1 || !args.mistake) return;
  for (int i = 0; i < 4; ++i) __syncthreads();  // the other block goes meanwhile
  ptx::mbarrier_arrive_cluster(&barrier, 1);
}

// out[0] = the first element of A A^T for a tile A of ones.
template <int kWhat>
__global__ void multiply(const Args args) {
  XGEMM_DYNAMIC_SHARED(uint8_t, raw, 128);
  auto* tile = reinterpret_cast<__half*>(raw + (1024 - ptx::smem_address(raw) % 1024) % 1024);
  for (int i = threadIdx.x; i < 64 * 64; i += kThreads) tile[i] = __float2half(1.0f);
  ptx::fence_proxy_async();
  __syncthreads();
  const uint64_t operand = ptx::wgmma_descriptor(tile, 16, 1024);
  float sums[32] = {};
  if (kWhat != 0 || !args.mistake) ptx::wgmma_fence();
  ptx::wgmma<__half, 0, 0>(sums, operand, operand, 1);
  ptx::wgmma_commit_group();
  if (kWhat != 1 || !args.mistake) ptx::wgmma_wait_group<0>();
  const float early = sums[0];
  if (kWhat == 2 && args.mistake) ptx::wgmma_fence();
  __syncthreads();
  if (kWhat == 2 && args.mistake) {  // given away while the second product reads it
    ptx::wgmma<__half, 0, 0>(sums, operand, operand, 0);
    ptx::wgmma_commit_group();
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * 64; i += kThreads) tile[i] = __float2half(0.0f);
    __syncthreads();
  }
  ptx::wgmma_wait_group<0>();
  args.out[threadIdx.x] = kWhat == 2 ? sums[0] : early;
}

struct Mistake {
  void (*kernel)(Args);
  unsigned blocks = 1;
};
const std::map<std::string, Mistake> kMistakes = {
    {"shared_without_sync", {shared_without_sync}},
    {"copy_without_wait", {copy_without_wait}},
    {"load_without_wait", {load_without_wait}},
    {"store_without_wait", {store_without_wait}},
    {"exit_before_store", {exit_before_store}},
    {"inner_coordinate", {inner_coordinate}},
    {"barrier_without_arrival", {barrier_without_arrival}},
    {"barrier_without_init", {barrier_without_init}},
    {"named_barrier", {named_barrier}},
    {"partial_warp", {partial_warp}},
    {"read_beyond", {read_beyond}},
    {"read_before", {read_before}},
    {"write_before", {write_before}},
    {"write_input", {write_input}},
    {"misaligned", {misaligned}},
    {"shared_beyond", {shared_beyond}},
    {"gone_block", {gone_block, 2}},
    {"product_without_fence", {multiply<0>}},
    {"product_without_wait", {multiply<1>}},
    {"operand_given_away", {multiply<2>}},
};

CUresult encode(CUtensorMap* map, const float* data, cuuint64_t row_bytes) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                   &found);
  const cuuint64_t extents[] = {32, 4, 1}, strides[] = {row_bytes, 16};
  const cuuint32_t box[] = {32, 1, 1}, steps[] = {1, 1, 1};
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)(
      map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, const_cast<float*>(data), extents, strides, box,
      steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

void run(const std::string& name, uintptr_t data, uintptr_t out, bool mistake) {
  const Mistake& what = kMistakes.at(name);
  Args args{};
  args.data = reinterpret_cast<const float*>(data);
  args.out = reinterpret_cast<float*>(out);
  args.mistake = mistake;
  const bool stores = name == "store_without_wait" || name == "exit_before_store";
  encode(&args.map, stores ? args.out : args.data, 128);
  const xgemm::cuda::Grid grid{.blocks = dim3(what.blocks),
                               .threads = dim3(kThreads),
                               .shared_bytes = kBytes,
                               .cluster = dim3(what.blocks)};
  const xgemm::Status status = xgemm::cuda::launch_grid(name.c_str(), grid, what.kernel, args);
  if (!status.ok()) throw std::runtime_error(cudaGetErrorString(status.error));
}

}  // namespace

void define(py::module_& m) {
  m.def("run_mistake", &run, py::arg("name"), py::arg("data"), py::arg("out"), py::arg("mistake"));
  m.def("encodes", [](uintptr_t data, uint64_t row_bytes) {
    CUtensorMap map;
    return encode(&map, reinterpret_cast<const float*>(data), row_bytes) == CUDA_SUCCESS;
  });
}

}  // namespace bind_mistakes
