// The probes' ops; ladder.cpp has their schemas.
#ifdef XGEMM_WITH_CUDA
#include <cstdint>

#include "common/current_device.h"
#include "cuda/ladder/api.h"
#include "ops/boxed.h"
#include "ops/cuda_context.h"
#include "ops/ladder/arguments.h"

namespace xgemm::ops::ladder {
namespace {

namespace gpu = cuda::ladder;

int64_t* number_of(const char* op, const char* name, const TensorView& view) {
  require_dtype(op, name, view, {DType::kI64});
  require_shape(op, name, view, {1});
  return static_cast<int64_t*>(view.mutable_data());
}

// Returns the loads; a lane's `addresses` are not checked, who calls does that.
int64_t pattern(const Tensor& cycles, const Tensor& addresses, int64_t width, int64_t bytes,
                int64_t steps) {
  const char* op = "probe_pattern";
  const TensorView view(op, "addresses", addresses), view_cycles(op, "cycles", cycles);
  require_dtype(op, "addresses", view, {DType::kI32});
  require_contiguous(op, "addresses", view, 1);
  require_shape(op, "addresses", view, {32});
  require_same_device(op, "cycles", view_cycles, "addresses", view);
  if (width != 4 && width != 8 && width != 16) {
    value_error(op, ": width must be 4, 8 or 16, got ", width);
  }
  if (bytes <= 0 || bytes > gpu::kPatternBytes || bytes % 16 != 0) {
    value_error(op, ": bytes must be a multiple of 16 up to ", gpu::kPatternBytes, ", got ", bytes);
  }
  const CurrentDevice device(op, view.device_index);
  const Tensor out = new_output({gpu::kPatternThreads}, torch_code(DType::kF32), view);
  require_ok(op, gpu::run_pattern({
                     .addresses = static_cast<const int*>(view.data()),
                     .width = static_cast<int>(width),
                     .bytes = static_cast<int>(bytes),
                     .steps = static_cast<int>(steps),
                     .out = static_cast<float*>(out.mutable_data_ptr()),
                     .cycles = number_of(op, "cycles", view_cycles),
                     .stream = current_stream(view.device_index),
                 }));
  return gpu::pattern_loads(static_cast<int>(steps));
}

int64_t pattern_loads(int64_t steps) { return gpu::pattern_loads(static_cast<int>(steps)); }

// Returns the FMAs of a thread.
int64_t fma(const Tensor& cycles, bool dependent, int64_t steps) {
  const char* op = "probe_fma";
  const TensorView view(op, "cycles", cycles);
  const CurrentDevice device(op, view.device_index);
  const Tensor out = new_output({32}, torch_code(DType::kF32), view);
  require_ok(op, gpu::run_fma({
                     .dependent = dependent,
                     .steps = static_cast<int>(steps),
                     .out = static_cast<float*>(out.mutable_data_ptr()),
                     .cycles = number_of(op, "cycles", view),
                     .stream = current_stream(view.device_index),
                 }));
  return steps * gpu::kFmasOfAStep;
}

// The number of an element of x[::stride] that is `sought`, or what `found` was.
void stride(const Tensor& found, const Tensor& x, int64_t stride, double sought) {
  const char* op = "probe_stride";
  const TensorView view(op, "x", x), view_found(op, "found", found);
  require_dtype(op, "x", view, {DType::kF32});
  require_contiguous(op, "x", view, 1);
  require_same_device(op, "found", view_found, "x", view);
  if (stride < 1) value_error(op, ": stride must be positive, got ", stride);
  require_multiple(op, 0, "the number of elements", view.size(0),
                   static_cast<int>(stride) * gpu::kStrideThreads);
  const CurrentDevice device(op, view.device_index);
  require_ok(op, gpu::run_stride({
                     .x = static_cast<const float*>(view.data()),
                     .loads = view.size(0) / stride,
                     .stride = static_cast<int>(stride),
                     .sought = static_cast<float>(sought),
                     .found = number_of(op, "found", view_found),
                     .stream = current_stream(view.device_index),
                 }));
}

}  // namespace
}  // namespace xgemm::ops::ladder

STABLE_TORCH_LIBRARY_IMPL(xgemm_ladder, CUDA, m) {
  m.impl("probe_pattern", TORCH_BOX(&xgemm::ops::ladder::pattern));
  m.impl("probe_fma", TORCH_BOX(&xgemm::ops::ladder::fma));
  m.impl("probe_stride", TORCH_BOX(&xgemm::ops::ladder::stride));
}

STABLE_TORCH_LIBRARY_IMPL(xgemm_ladder, CompositeExplicitAutograd, m) {
  m.impl("probe_pattern_loads", TORCH_BOX(&xgemm::ops::ladder::pattern_loads));
}
#endif
