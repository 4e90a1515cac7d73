#include "cuda/w4a16/sm90/skinny/launch.h"

#include "cuda/w4a16/sm90/skinny/params.h"

namespace xgemm::cuda::w4a16::sm90::skinny {
namespace {

bool aligned_to(const void* data, int bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

int log2_of(int power) {
  int log2 = 0;
  while (power >> log2 > 1) ++log2;
  return log2;
}

}  // namespace

Status launch(const Problem& p, const Config& config, cudaStream_t stream) {
  const w4::Layout& layout = p.weight.layout;
  const Split& split = config.split;
  Params params{};
  params.weight = p.weight.data;
  params.row_bytes = layout.row_bytes();
  params.unit_bytes = static_cast<int>(layout.unit_bytes());
  params.strip_bytes = static_cast<int>(layout.strip_bytes());
  params.groups = static_cast<int>(layout.groups_per_unit());
  params.zeros = layout.zeros, params.bf16_scales = p.weight.bf16_scales;
  params.zeros_in_units = layout.zeros && params.groups > 0;

  params.x = static_cast<const uint16_t*>(p.x);
  params.x_row_stride = p.m > 1 ? p.x_row_stride : 0;
  params.x_col_stride = p.x_col_stride;
  params.x_vectors = p.perm == nullptr && (p.x_col_stride == 1 || layout.k == 1) &&
                     params.x_row_stride % 8 == 0 && aligned_to(p.x, 16);
  params.perm = p.perm;
  params.rows = static_cast<int>(p.m), params.k = static_cast<int>(layout.k);

  params.d = static_cast<uint16_t*>(p.d);
  params.d_row_stride = p.m > 1 ? p.d_row_stride : 0;
  params.d_col_stride = p.d_col_stride;
  params.d_vectors = p.d_col_stride == 1 && params.d_row_stride % 4 == 0 && aligned_to(p.d, 8);
  params.bias = static_cast<const uint16_t*>(p.bias);
  params.bias_stride = p.bias_stride;
  params.activation = p.activation;
  params.n = layout.n;

  params.warps = split.warps, params.stages = split.stages;
  params.piece_bytes = split.piece_bytes;
  params.log2_cluster = log2_of(split.cluster);
  params.units_each = split.least_units();
  params.units_extra = split.units % split.cluster;
  params.warp_units_each = params.units_each / split.warps;
  params.warp_units_extra = params.units_each % split.warps;
  params.x_pitch = static_cast<int>(split.x_pitch());
  params.buffers = split.buffers();
  params.reducers = split.reducers();
  params.shared = split.plan();

  const Work work = {.strips = static_cast<int>(ceil_div<int64_t>(layout.n, w4::kStripColumns)),
                     .most_clusters = config.clusters,
                     .wide = split.strips == kWideStrips,
                     .plain = is_plain(p)};
  const auto run = p.dtype == DType::kF16 ? launch_f16 : launch_bf16;
  return run(params, work, stream);
}

}  // namespace xgemm::cuda::w4a16::sm90::skinny
