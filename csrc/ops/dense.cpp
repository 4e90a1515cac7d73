#include "ops/dense.h"

#ifdef XGEMM_WITH_CUDA
#include <algorithm>

#include "common/current_device.h"
#include "cuda/gemm/api.h"
#include "cuda/gemm/select.h"
#include "ops/cuda_context.h"
#endif

namespace xgemm::ops {
#ifdef XGEMM_WITH_CUDA
namespace {

const void* advance(const void* data, DType dtype, int64_t elements) {
  if (data == nullptr) return nullptr;
  return static_cast<const char*>(data) + elements * element_size(dtype);
}

cuda::gemm::Problem to_cuda(const cpu::GemmProblem& p, Precision precision) {
  cuda::gemm::Problem problem;
  problem.precision = precision;
  problem.m = p.m, problem.n = p.n, problem.k = p.k;
  problem.dtype = p.d.dtype;
  problem.a = {p.a.data, p.a.row_stride, p.a.col_stride};
  problem.b = {p.b.data, p.b.row_stride, p.b.col_stride};
  problem.c = {p.c.data, p.c.row_stride, p.c.col_stride};
  problem.d = p.d.data, problem.d_row_stride = p.d.row_stride,
  problem.d_col_stride = p.d.col_stride;
  problem.alpha = p.alpha, problem.beta = p.beta;
  problem.bias = p.bias, problem.bias_stride = p.bias_stride;
  problem.activation = p.activation;
  problem.batch_dims = static_cast<int>(p.batch.size());
  std::transform(p.batch.begin(), p.batch.end(), problem.batch, [](const cpu::BatchDim& dim) {
    return cuda::gemm::BatchDim{dim.size, dim.a, dim.b, dim.c, dim.d};
  });
  return problem;
}

// Freed when the op returns: torch's allocator hands the memory out again in the stream's order
// only, and inside a graph's capture it is the graph's own.
OwnedTensor new_workspace(int64_t bytes, const TensorView& like) {
  return new_owned(&bytes, 1, torch_code(DType::kI8), like);
}

void launch_one(const char* op, const cpu::GemmProblem& p, Precision precision,
                const TensorView& like, cudaStream_t stream) {
  const cuda::gemm::Problem problem = to_cuda(p, precision);
  const cuda::gemm::Config config =
      cuda::gemm::remembered_config(problem, device_info(like.device_index));
  OwnedTensor workspace;
  void* memory = nullptr;
  if (config.workspace_bytes > 0) {
    workspace = new_workspace(config.workspace_bytes, like);
    TORCH_ERROR_CODE_CHECK(torch_get_mutable_data_ptr(workspace.get(), &memory));
  }
  require_ok(op, cuda::gemm::launch(problem, config, memory, stream));
}

void run_on_stream(const char* op, const cpu::GemmProblem& p, Precision precision,
                   const TensorView& like, cudaStream_t stream) {
  if (p.batch.size() <= cuda::gemm::kMaxBatchDims) {
    return launch_one(op, p, precision, like, stream);
  }
  // More dimensions than a launch takes, none of which merge: one launch for each of the outermost.
  cpu::GemmProblem inner = p;
  inner.batch.erase(inner.batch.begin());
  const cpu::BatchDim outer = p.batch.front();
  for (int64_t i = 0; i < outer.size; ++i) {
    inner.a.data = advance(p.a.data, p.a.dtype, i * outer.a);
    inner.b.data = advance(p.b.data, p.b.dtype, i * outer.b);
    inner.c.data = advance(p.c.data, p.d.dtype, i * outer.c);
    inner.d.data = const_cast<void*>(advance(p.d.data, p.d.dtype, i * outer.d));
    run_on_stream(op, inner, precision, like, stream);
  }
}

}  // namespace
#endif  // XGEMM_WITH_CUDA

void run_dense(const char* op, const cpu::GemmProblem& problem, Precision precision,
               const TensorView& like) {
#ifdef XGEMM_WITH_CUDA
  if (like.device_type == aoti_torch_device_type_cuda()) {
    const CurrentDevice device(op, like.device_index);
    return run_on_stream(op, problem, precision, like, current_stream(like.device_index));
  }
#else
  (void)op, (void)precision, (void)like;  // only CPU tensors get here
#endif
  cpu::gemm(problem, TorchParallel());
}

std::string explain_dense_cuda(const char* op, const cpu::GemmProblem& problem, Precision precision,
                               ExplainForm form) {
#ifdef XGEMM_WITH_CUDA
  const DeviceInfo device = current_device();
  if (device.sm_count > 0) {
    const cuda::gemm::Problem p = to_cuda(problem, precision);
    if (form.json) return cuda::gemm::explain_json(p, device, form.candidates);
    return cuda::gemm::explain(p, cuda::gemm::select_config(p, device));
  }
  value_error(op, ": device must be one that is here, got 'cuda' without a GPU");
#else
  (void)problem, (void)precision, (void)form;
  value_error(op, ": device must be 'cpu' in a library built without CUDA, got 'cuda'");
#endif
}

}  // namespace xgemm::ops
