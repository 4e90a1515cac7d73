#include "cuda/launch.h"
#include "cuda/shared_memory_limit.h"
#include "cuda/w4a16/sm90/register_resident/kernel.cuh"

namespace xgemm::cuda::w4a16::sm90::register_resident {
namespace {

template <typename T>
Status launch_typed(const Params& params, const Plan& plan, cudaStream_t stream) {
  constexpr const char* kName = "the W4A16 kernel for small weights";
  const auto kernel = register_resident_kernel<T>;
  static SharedMemoryLimit limit;
  const cudaError_t set = limit.raise(reinterpret_cast<const void*>(kernel), kSmemBytes);
  if (set != cudaSuccess) return {set, kName};
  // A CTA an SM: where a launch begins early, two could find room on an SM that others have left.
  const int bytes = max(plan.bytes(), kSmemBytes / 2 + 1024);
  return launch_grid(kName,
                     {.blocks = dim3(params.strips),
                      .threads = dim3(plan.warps * 32),
                      .shared_bytes = static_cast<size_t>(bytes),
                      .stream = stream,
                      .overlaps_previous = true},
                     kernel, params);
}

}  // namespace

Status launch_f16(const Params& params, const Plan& plan, cudaStream_t stream) {
  return launch_typed<__half>(params, plan, stream);
}

Status launch_bf16(const Params& params, const Plan& plan, cudaStream_t stream) {
  return launch_typed<__nv_bfloat16>(params, plan, stream);
}

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
