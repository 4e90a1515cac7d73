// The same kernels, each of which starts under the one before it in the stream.
#include "cuda/w4a16/grouped/instances.cuh"
#include "cuda/w4a16/grouped/rows_kernels.cuh"
#include "cuda/w4a16/grouped/sort_kernels.cuh"

namespace xgemm::cuda::w4a16::grouped::sm90 {

Status launch_f16(const Params& params, const Instance& instance, cudaStream_t stream) {
  return launch_typed<__half, true>(params, instance, stream);
}
Status launch_bf16(const Params& params, const Instance& instance, cudaStream_t stream) {
  return launch_typed<__nv_bfloat16, true>(params, instance, stream);
}
Status copy_rows(const CopyRows& copy, cudaStream_t stream) {
  return launch_copy_rows<true>(copy, stream);
}
Status gate(const Gate& gate, cudaStream_t stream) { return launch_gate<true>(gate, stream); }
Status combine(const Combine& combine, cudaStream_t stream) {
  return launch_combine<true>(combine, stream);
}
Status sort(const Sort& sort, cudaStream_t stream) { return launch_sort<true>(sort, stream); }

}  // namespace xgemm::cuda::w4a16::grouped::sm90
