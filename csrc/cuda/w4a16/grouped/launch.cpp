#include <bit>

#include "common/math.h"
#include "cuda/w4a16/grouped/api.h"
#include "cuda/w4a16/grouped/instances.h"
#include "cuda/w4a16/grouped/tile.h"

namespace xgemm::cuda::w4a16::grouped {
namespace {

// How a unit's bytes are read.
sm80::Params format_of(const Weight& weight) {
  const w4::Layout& layout = weight.layout;
  sm80::Params format{};
  format.unit_bytes = static_cast<int>(layout.unit_bytes());
  format.strip_bytes = static_cast<int>(layout.strip_bytes());
  format.per_channel = layout.per_channel();
  const int64_t group = layout.per_channel() ? w4::kUnitK : layout.group_size;
  format.group_quarters_log2 = std::countr_zero(static_cast<uint64_t>(group / 32));
  format.zeros = layout.zeros, format.bf16_scales = weight.bf16_scales;
  return format;
}

// All but the rows of X where they are copied, and y where a gate follows.
Params make_params(const Problem& p, const Plan& plan) {
  const w4::Layout& layout = p.weight.layout;
  Params params{};
  params.format = format_of(p.weight);
  params.experts = static_cast<int>(p.experts), params.slots = static_cast<int>(p.slots);
  params.row_divisor = static_cast<int>(p.row_divisor);
  params.k = static_cast<int>(layout.k), params.units = static_cast<int>(layout.units());
  params.gated = is_gated(p.activation) && !plan.gate_after;
  params.n = layout.n, params.columns = params.gated ? layout.n / 2 : layout.n;
  const int halves = p.dtype == DType::kF32 || !params.gated ? 2 : 1;  // of 32 columns of y
  const int width = 32 * halves * (plan.wgmma ? kWgmmaBlocks : 1);
  params.column_blocks = static_cast<int>(ceil_div<int64_t>(params.columns, width));
  params.weight = p.weight.data;
  params.expert_bytes = layout.bytes(), params.row_bytes = layout.row_bytes();
  params.x = p.x, params.x_row_stride = p.x_row_stride;
  params.sorted = p.sorted, params.bias = p.bias, params.perm = p.perm;
  params.activation = plan.gate_after ? Activation::kNone : activation_of(p.activation);
  params.y = p.y;
  params.stages = plan.stages;
  return params;
}

using Launch = Status (*)(const Params&, const Instance&, cudaStream_t);

Launch mma_sync(const Problem& p, const Plan& plan) {
  if (p.dtype == DType::kF16) {
    if (p.fp4) return plan.overlap ? sm90::launch_fp4_f16 : launch_fp4_f16;
    return plan.overlap ? sm90::launch_f16 : launch_f16;
  }
  if (p.fp4) return plan.overlap ? sm90::launch_fp4_bf16 : launch_fp4_bf16;
  return plan.overlap ? sm90::launch_bf16 : launch_bf16;
}

Status multiply(const Problem& p, const Params& params, const Plan& plan, cudaStream_t stream) {
  if (!plan.wgmma) return mma_sync(p, plan)(params, {plan.block_m, plan.tiles}, stream);
  const auto run = p.dtype == DType::kF16 ? sm90::launch_wgmma_f16 : sm90::launch_wgmma_bf16;
  return run(params, {plan.block_m, plan.ctas}, stream);
}

}  // namespace

Status launch(const Problem& p, const Plan& plan, void* workspace, cudaStream_t stream) {
  Params params = make_params(p, plan);
  if (p.dtype == DType::kF32) {
    return launch_f32(params, p.weight.layout, p.fp4, plan.tiles, stream);
  }
  if (plan.copy_x) {
    const auto copy = plan.overlap ? sm90::copy_rows : copy_rows;
    const Status copied = copy({.experts = params.experts,
                                .slots = params.slots,
                                .row_divisor = params.row_divisor,
                                .k = p.weight.layout.k,
                                .sorted = p.sorted,
                                .perm = p.perm,
                                .x = p.x,
                                .x_row_stride = p.x_row_stride,
                                .to = workspace,
                                .to_row_stride = plan.x_row_stride},
                               stream);
    if (!copied.ok()) return copied;
    params.x = workspace, params.x_row_stride = plan.x_row_stride;
    params.row_divisor = 1;
  }
  if (plan.gate_after) params.y = static_cast<char*>(workspace) + plan.product_offset;
  params.y_vector = params.columns % 4 == 0 && reinterpret_cast<uintptr_t>(params.y) % 8 == 0;
  const Status status = multiply(p, params, plan, stream);
  if (!status.ok() || !plan.gate_after) return status;
  const auto run_gate = plan.overlap ? sm90::gate : gate;
  return run_gate({.slots = p.slots,
                   .columns = p.columns(),
                   .dtype = p.dtype,
                   .activation = activation_of(p.activation),
                   .x = params.y,
                   .y = p.y},
                  stream);
}

Status launch(const Combine& p, const DeviceInfo& device, cudaStream_t stream) {
  return device.capability == 90 ? sm90::combine(p, stream) : combine(p, stream);
}

Status launch(const Sort& p, const DeviceInfo& device, cudaStream_t stream) {
  return device.capability == 90 ? sm90::sort(p, stream) : sort(p, stream);
}

}  // namespace xgemm::cuda::w4a16::grouped
