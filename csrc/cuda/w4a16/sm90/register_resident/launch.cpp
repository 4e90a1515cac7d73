#include "cuda/w4a16/sm90/register_resident/launch.h"

#include "cuda/w4a16/sm90/register_resident/params.h"

namespace xgemm::cuda::w4a16::sm90::register_resident {

Status launch(const Problem& p, const Plan& plan, cudaStream_t stream) {
  const w4::Layout& layout = p.weight.layout;
  Params params{};
  params.weight = p.weight.data;
  params.row_bytes = static_cast<uint32_t>(layout.row_bytes());
  params.strips = static_cast<uint32_t>(ceil_div<int64_t>(layout.n, w4::kStripColumns));
  params.units = static_cast<uint32_t>(layout.units());
  params.bf16_scales = p.weight.bf16_scales;
  params.x = static_cast<const uint16_t*>(p.x);
  params.k = static_cast<int>(layout.k), params.sums = plan.sums();
  params.d = static_cast<uint16_t*>(p.d), params.d_stride = p.d_col_stride;
  params.bias = static_cast<const uint16_t*>(p.bias), params.bias_stride = p.bias_stride;
  params.n = static_cast<int>(layout.n);
  params.activation = p.activation;
  return p.dtype == DType::kF16 ? launch_f16(params, plan, stream)
                                : launch_bf16(params, plan, stream);
}

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
