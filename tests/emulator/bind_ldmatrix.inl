// One warp that runs one variant of ldmatrix, shown to pytest.
#include <pybind11/pybind11.h>

#include <map>
#include <stdexcept>
#include <string>

#include "cuda/launch.h"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/shared_memory.h"

namespace bind_ldmatrix {

namespace py = pybind11;
namespace cuda = xgemm::cuda;
namespace ptx = xgemm::ptx;

namespace {

constexpr int kLanes = 32;
constexpr int kBytes = 2048;  // of shared memory

struct Args {
  const uint4* data;       // [kBytes], copied to shared memory
  const int32_t* offsets;  // [kLanes]: of each lane's row, in bytes
  uint32_t* out;           // [kLanes, matrices]
};

template <int kMatrices, void (*kLoad)(uint32_t (&)[kMatrices], uint32_t)>
__global__ void load(const Args args) {
  XGEMM_DYNAMIC_SHARED(uint4, values, 128);
  const int lane = threadIdx.x;
  for (int i = lane; i < kBytes / 16; i += kLanes) values[i] = args.data[i];
  __syncthreads();
  uint32_t d[kMatrices];
  kLoad(d, ptx::smem_address(values) + args.offsets[lane]);
  for (int i = 0; i < kMatrices; ++i) args.out[lane * kMatrices + i] = d[i];
}

const std::map<std::string, void (*)(Args)> kVariants = {
    {"x1", load<1, ptx::ldmatrix_x1>}, {"x1.trans", load<1, ptx::ldmatrix_x1_trans>},
    {"x2", load<2, ptx::ldmatrix_x2>}, {"x2.trans", load<2, ptx::ldmatrix_x2_trans>},
    {"x4", load<4, ptx::ldmatrix_x4>}, {"x4.trans", load<4, ptx::ldmatrix_x4_trans>},
};

}  // namespace

void define(py::module_& m) {
  m.attr("LDMATRIX_BYTES") = kBytes;
  m.def("ldmatrix", [](const std::string& variant, uintptr_t data, uintptr_t offsets,
                       uintptr_t out) {
    const Args args{reinterpret_cast<const uint4*>(data), reinterpret_cast<const int32_t*>(offsets),
                    reinterpret_cast<uint32_t*>(out)};
    const xgemm::Status status = cuda::launch_grid(
        "ldmatrix", {.blocks = dim3(1), .threads = dim3(kLanes), .shared_bytes = kBytes},
        kVariants.at(variant), args);
    if (!status.ok()) throw std::runtime_error(cudaGetErrorString(status.error));
  });
}

}  // namespace bind_ldmatrix
