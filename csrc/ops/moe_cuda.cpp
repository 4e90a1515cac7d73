// moe_sort and moe.w4a16 on CUDA.
#ifdef XGEMM_WITH_CUDA
#include <cstdlib>
#include <optional>
#include <string_view>

#include "common/current_device.h"
#include "cuda/w4a16/api.h"
#include "ops/cuda_context.h"
#include "ops/moe.h"
#include "ops/scratch.h"
#include "ops/w4a16_cuda.h"

namespace xgemm::ops {

using namespace cuda::w4a16;

namespace {

// XGEMM_MOE_KERNEL: "mma_sync" or "wgmma", of tiles of so many rows: "wgmma:64". To measure one of
// them, so it is asked for at every call.
grouped::Wanted wanted_kernel() {
  const char* value = std::getenv("XGEMM_MOE_KERNEL");
  if (value == nullptr) return {};
  const std::string_view text(value), name = text.substr(0, text.find(':'));
  const int rows = name.size() < text.size() ? std::atoi(value + name.size() + 1) : 0;
  if (name == "mma_sync") return {grouped::Kernel::kMmaSync, rows};
  return {name == "wgmma" ? grouped::Kernel::kWgmma : grouped::Kernel::kAny, rows};
}

}  // namespace

void sort_cuda(const char* op, const TensorView& ids, int64_t experts, int32_t* sorted) {
  const CurrentDevice device(op, ids.device_index);
  const grouped::Sort sort{.ids = ids.data(),
                           .wide = find_dtype(ids.dtype_code) == DType::kI64,
                           .slots = ids.numel(),
                           .experts = static_cast<int>(experts),
                           .sorted = sorted};
  require_ok(
      op, grouped::launch(sort, device_info(ids.device_index), current_stream(ids.device_index)));
}

void run_moe_cuda(const char* op, const MoeCall& call, const TensorView& like) {
  const CurrentDevice device(op, like.device_index);
  const cudaStream_t stream = current_stream(like.device_index);
  const DeviceInfo info = device_info(like.device_index);
  const int64_t columns = call.columns();
  std::optional<Scratch> of_slots, workspace;
  if (call.weights != nullptr) {
    of_slots.emplace(call.slots() * columns * element_size(call.dtype), like);
  }
  const grouped::Problem problem{.experts = call.experts,
                                 .slots = call.slots(),
                                 .weight = cuda_weight(call.weight),
                                 .fp4 = call.weight.fp4,
                                 .dtype = call.dtype,
                                 .x = call.x,
                                 .x_row_stride = call.x_row_stride,
                                 .row_divisor = call.row_divisor,
                                 .sorted = call.sorted,
                                 .bias = call.bias,
                                 .perm = call.perm,
                                 .activation = call.activation,
                                 .y = of_slots ? of_slots->data : call.result,
                                 .wanted = wanted_kernel()};
  const grouped::Plan plan = grouped::make_plan(problem, info);
  if (plan.workspace_bytes > 0) workspace.emplace(plan.workspace_bytes, like);
  require_ok(op, grouped::launch(problem, plan, workspace ? workspace->data : nullptr, stream));
  if (call.weights == nullptr) return;
  const grouped::Combine combine{.tokens = call.tokens,
                                 .top_k = call.top_k,
                                 .columns = columns,
                                 .dtype = call.dtype,
                                 .y = problem.y,
                                 .weights = call.weights,
                                 .weights_dtype = call.weights_dtype,
                                 .result = call.result};
  require_ok(op, grouped::launch(combine, info, stream));
}

}  // namespace xgemm::ops
#endif
