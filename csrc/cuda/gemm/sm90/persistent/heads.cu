#include "common/math.h"
#include "cuda/gemm/sm90/persistent/heads.h"
#include "cuda/gemm/sm90/persistent/shifted.h"
#include "cuda/launch.h"

namespace xgemm::cuda::gemm::sm90::persistent {
namespace {

constexpr int kThreads = 256;

struct Heads {
  const uint16_t* a;
  uint16_t* heads;
  int64_t stride;
  int rows, k, residues;
  int shift, shift_step;  // of the first row, and from one to the next
};

// A thread for each element.
__global__ void __launch_bounds__(kThreads) heads_kernel(const __grid_constant__ Heads of) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int row = static_cast<int>(i / kBlockK), column = static_cast<int>(i % kBlockK);
  if (row >= of.rows) return;
  const int residue = row % of.residues,
            k = column - (of.shift + residue * of.shift_step) % kVector;
  const int64_t to = int64_t{residue} * (of.rows / of.residues) + row / of.residues;
  of.heads[to * kBlockK + column] = k >= 0 && k < of.k ? __ldg(of.a + row * of.stride + k) : 0;
}

}  // namespace

Status copy_heads(const GemmProblem& p, uint16_t* heads, cudaStream_t stream) {
  const Heads of{static_cast<const uint16_t*>(p.a.data),
                 heads,
                 p.a.row_stride,
                 static_cast<int>(p.m),
                 static_cast<int>(p.k),
                 static_cast<int>(residues_of(p)),
                 shift_of(p, 0),
                 static_cast<int>(p.a.row_stride % kVector)};
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(p.m * kBlockK, kThreads));
  const Grid grid{.blocks = dim3(blocks), .threads = dim3(kThreads), .stream = stream};
  return launch_grid("the copy of a shifted operand's heads", grid, heads_kernel, of);
}

}  // namespace xgemm::cuda::gemm::sm90::persistent
