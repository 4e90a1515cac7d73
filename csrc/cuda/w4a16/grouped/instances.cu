#include "cuda/w4a16/grouped/instances.cuh"
#include "cuda/w4a16/grouped/rows_kernels.cuh"
#include "cuda/w4a16/grouped/sort_kernels.cuh"

namespace xgemm::cuda::w4a16::grouped {

Status launch_f16(const Params& params, const Instance& instance, cudaStream_t stream) {
  return launch_typed<__half, false>(params, instance, stream);
}
Status launch_bf16(const Params& params, const Instance& instance, cudaStream_t stream) {
  return launch_typed<__nv_bfloat16, false>(params, instance, stream);
}
Status copy_rows(const CopyRows& copy, cudaStream_t stream) {
  return launch_copy_rows<false>(copy, stream);
}
Status gate(const Gate& gate, cudaStream_t stream) { return launch_gate<false>(gate, stream); }
Status combine(const Combine& combine, cudaStream_t stream) {
  return launch_combine<false>(combine, stream);
}
Status sort(const Sort& sort, cudaStream_t stream) { return launch_sort<false>(sort, stream); }

}  // namespace xgemm::cuda::w4a16::grouped
