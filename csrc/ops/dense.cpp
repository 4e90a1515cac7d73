#include "ops/dense.h"

#include "cpu/sgemm/api.h"

#ifdef XGEMM_WITH_CUDA
#include <optional>

#include "common/current_device.h"
#include "cuda/gemm/api.h"
#include "cuda/gemm/select.h"
#include "ops/cuda_context.h"
#include "ops/scratch.h"
#endif

namespace xgemm::ops {
namespace {

#ifdef XGEMM_WITH_CUDA
void run_cuda(const char* op, const GemmProblem& problem, const TensorView& like,
              cudaStream_t stream) {
  const cuda::gemm::Choice choice =
      cuda::gemm::remembered_config(problem, device_info(like.device_index));
  std::optional<Scratch> workspace;
  if (choice.workspace_bytes > 0) workspace.emplace(choice.workspace_bytes, like);
  void* const memory = workspace ? workspace->data : nullptr;
  require_ok(op, cuda::gemm::launch(problem, choice, memory, stream));
}
#endif

// The problem for each index of the first of `dims` batch dimensions, and so on for the others.
template <typename Run>
void for_each_outer(const GemmProblem& problem, const BatchDim* dims, size_t count,
                    const Run& run) {
  if (count == 0) return run(problem);
  const auto advance = [&](const void* data, int64_t elements) -> const void* {
    if (data == nullptr) return nullptr;
    return static_cast<const char*>(data) + elements * element_size(problem.dtype);
  };
  GemmProblem inner = problem;
  for (int64_t i = 0; i < dims->size; ++i) {
    inner.a.data = advance(problem.a.data, i * dims->a);
    inner.b.data = advance(problem.b.data, i * dims->b);
    inner.c.data = advance(problem.c.data, i * dims->c);
    inner.d = const_cast<void*>(advance(problem.d, i * dims->d));
    for_each_outer(inner, dims + 1, count - 1, run);
  }
}

}  // namespace

void run_dense(const char* op, const GemmProblem& problem, const TensorView& like,
               const std::vector<BatchDim>& outer) {
#ifdef XGEMM_WITH_CUDA
  if (like.device_type == aoti_torch_device_type_cuda()) {
    const CurrentDevice device(op, like.device_index);
    const cudaStream_t stream = current_stream(like.device_index);
    return for_each_outer(problem, outer.data(), outer.size(),
                          [&](const GemmProblem& p) { run_cuda(op, p, like, stream); });
  }
#else
  (void)op, (void)like;  // only CPU tensors get here
#endif
  for_each_outer(problem, outer.data(), outer.size(),
                 [](const GemmProblem& p) { cpu::gemm(p, TorchParallel()); });
}

std::string explain_dense_cuda(const char* op, const GemmProblem& problem, ExplainForm form) {
#ifdef XGEMM_WITH_CUDA
  const DeviceInfo device = current_device();
  if (device.sm_count > 0) {
    if (form.json) return cuda::gemm::explain_json(problem, device, form.candidates);
    return cuda::gemm::explain(problem, cuda::gemm::select_config(problem, device));
  }
  value_error(op, ": device must be one that is here, got 'cuda' without a GPU");
#else
  (void)problem, (void)form;
  value_error(op, ": device must be 'cpu' in a library built without CUDA, got 'cuda'");
#endif
}

}  // namespace xgemm::ops
