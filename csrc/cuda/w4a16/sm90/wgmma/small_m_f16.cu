#include "cuda/w4a16/sm90/wgmma/small_m_instances.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

Status launch_small_m_f16(const Params& params, const Variant& variant, const Work& work,
                          cudaStream_t stream) {
  return launch_small_m<__half>(params, variant, work, stream);
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
