#include "cuda/w4a16/sm90/wgmma/launch.h"

#include <algorithm>

#include "cuda/nonce.h"
#include "cuda/ptx/l2_policy.h"
#include "cuda/tensor_map_encoder.h"
#include "cuda/w4a16/api.h"
#include "cuda/w4a16/sm90/wgmma/gather.h"
#include "cuda/w4a16/sm90/wgmma/params.h"
#include "cuda/w4a16/sm90/wgmma/tma_fit.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {
namespace {

// Neighbouring tiles run over this many rows of D before the next columns. (H200, M = 8192: 1 %
// less time than with 2048 for long K, the same else.)
constexpr int kGroupRows = 1024;

// A matrix of contiguous rows, and the boxes it is moved in.
struct Map {
  const void* data;
  int64_t rows, columns, row_stride;
  int box_rows, box_columns;
};

CUtensorMapDataType type_of(DType dtype) {
  return dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

// The swizzle is as wide as a box.
bool encode(CUtensorMap* map, DType dtype, const Map& m) {
  const auto type = type_of(dtype);
  const auto swizzle = m.box_columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                       : m.box_columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                             : CU_TENSOR_MAP_SWIZZLE_32B;
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(m.columns),
                                 static_cast<cuuint64_t>(m.rows)};
  // A stride along an extent of 1 is never used, but must still be a valid one.
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(m.rows > 1 ? m.row_stride * 2 : 16)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(m.box_columns),
                             static_cast<cuuint32_t>(m.box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const auto encoder = tensor_map_encoder();
  return encoder != nullptr &&
         encoder(map, type, 2, const_cast<void*>(m.data), extents, strides, box, steps,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// X for tiles whose stages are units (small_m.cuh, medium_m.cuh): with two boxes, 128 k in one
// load.
bool encode_unit_x(CUtensorMap* map, DType dtype, const Map& x, int boxes) {
  const auto type = type_of(dtype);
  const int64_t deep = boxes > 1 ? x.columns / kStageK : 1;
  const cuuint64_t extents[3] = {static_cast<cuuint64_t>(boxes > 1 ? kStageK : x.columns),
                                 static_cast<cuuint64_t>(x.rows), static_cast<cuuint64_t>(deep)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(x.rows > 1 ? x.row_stride * 2 : 16),
                                 kStageK * 2};
  const cuuint32_t box[3] = {kStageK, static_cast<cuuint32_t>(x.box_rows),
                             static_cast<cuuint32_t>(boxes)};
  const cuuint32_t steps[3] = {1, 1, 1};
  const auto encoder = tensor_map_encoder();
  return encoder != nullptr &&
         encoder(map, type, 3, const_cast<void*>(x.data), extents, strides, box, steps,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// X as TMA reads it: rows aligned, channels in the weight's order.
Status copy_x(const Problem& p, uint16_t* dst, cudaStream_t stream) {
  const int64_t k = p.weight.layout.k;
  // Many rows in another order are read faster several at a time through shared memory (H200, M =
  // 1024: 25 instead of 69 us for K = 14336, 7 instead of 11 for 4096); fewer keep more SMs busy by
  // columns (M = 128: 9 and 10 us), and rows in order are read as fast.
  constexpr int64_t kManyRows = 256;
  if (p.perm != nullptr && p.m >= kManyRows && k <= kMaxGathered) {
    return gather_rows({.src = static_cast<const uint16_t*>(p.x),
                        .row_stride = p.x_row_stride,
                        .col_stride = p.x_col_stride,
                        .perm = p.perm,
                        .dst = dst,
                        .rows = p.m,
                        .channels = static_cast<int>(k),
                        .overlaps_previous = p.overlaps_previous},
                       stream);
  }
  return gather_columns({.rows = p.m,
                         .cols = pitch_of(k),
                         .src_rows = p.m,
                         .src_cols = k,
                         .item_size = 2,
                         .src = p.x,
                         .src_row_stride = p.x_row_stride,
                         .src_col_stride = p.x_col_stride,
                         .dst = dst,
                         .dst_row_stride = pitch_of(k),
                         .from = p.perm},
                        stream);
}

Params params_of(const Problem& p, const Config& config) {
  const w4::Layout& layout = p.weight.layout;
  Params params{};
  params.weight = p.weight.data;
  params.row_bytes = layout.row_bytes();
  params.unit_bytes = static_cast<int>(layout.unit_bytes());
  params.strip_bytes = static_cast<int>(layout.strip_bytes());
  params.weight_rows = static_cast<int>(layout.rows());
  params.groups_per_unit = static_cast<int>(layout.groups_per_unit());
  params.zeros = layout.zeros, params.bf16_scales = p.weight.bf16_scales;
  params.m = static_cast<int>(p.m), params.n = static_cast<int>(layout.n);
  params.units = static_cast<int>(layout.units());
  params.by_units = FastDivmod(params.units);
  while (1 << params.split_shift < config.splits) ++params.split_shift;
  params.sharers = config.sharers;
  while (1 << params.sharers_shift < params.sharers) ++params.sharers_shift;
  params.row_tiles = ceil_div(params.m, config.rows);
  params.column_groups = ceil_div(params.n, config.columns() * config.sharers);
  params.tiles = static_cast<uint32_t>(params.row_tiles) * params.column_groups;
  params.group_rows = std::clamp(kGroupRows / config.rows, 1, params.row_tiles);
  params.by_band = FastDivmod(params.group_rows * params.column_groups);
  params.by_rows = FastDivmod(params.group_rows);
  const int last_rows = params.row_tiles % params.group_rows;
  params.by_last_rows = FastDivmod(last_rows > 0 ? last_rows : params.group_rows);
  // A weight that is read once shall not push out what L2 holds.
  params.weight_policy = params.row_tiles == 1 ? ptx::kEvictFirst : ptx::kEvictNormal;
  params.d_data = p.d;
  params.d_row_stride = p.d_row_stride, params.d_col_stride = p.d_col_stride;
  params.tma_store = d_fits_tma(p);
  params.bias = p.bias, params.bias_stride = p.bias_stride;
  params.activation = p.activation;
  return params;
}

// One tile of rows after the other: where each CTA's share begins and ends does not depend on M.
Status launch_by_rows(Problem p, Config config, void* workspace, cudaStream_t stream) {
  config.by_rows = false;
  const int64_t m = p.m;
  const auto* x = static_cast<const uint16_t*>(p.x);
  auto* d = static_cast<uint16_t*>(p.d);
  for (int64_t row = 0; row < m; row += config.rows) {
    p.m = std::min<int64_t>(m - row, config.rows);
    p.x = x + row * p.x_row_stride, p.d = d + row * p.d_row_stride;
    const Status status = wgmma::launch(p, config, workspace, stream);
    if (!status.ok()) return status;
    p.overlaps_previous = true;
  }
  return {};
}

}  // namespace

Status launch(const Problem& p, const Config& config, void* workspace, cudaStream_t stream) {
  if (config.by_rows) return launch_by_rows(p, config, workspace, stream);
  const w4::Layout& layout = p.weight.layout;
  Params params = params_of(p, config);
  Map x{p.x, p.m, layout.k, p.x_row_stride, config.rows / params.sharers, kStageK};
  bool overlaps_previous = p.overlaps_previous;
  auto* memory = static_cast<uint8_t*>(workspace);
  if (config.stream_k) {
    const StreamKWorkspace plan = stream_k_workspace(config.rows, config.columns(), config.ctas());
    params.stream_k = true, params.nonce = new_nonce();
    params.flags = reinterpret_cast<uint64_t*>(memory);
    params.partials = reinterpret_cast<float4*>(memory + plan.flag_bytes);
    memory += plan.bytes();
  }
  if (config.copy_x) {
    const Status copied = copy_x(p, reinterpret_cast<uint16_t*>(memory), stream);
    if (!copied.ok()) return copied;
    x.data = memory, x.row_stride = pitch_of(layout.k);
    overlaps_previous = true;  // the copy waits for what was before it
  }
  const bool small_m = config.rows <= kMaxSmallM, f16 = p.dtype == DType::kF16;
  params.x_boxes = boxes_of_x(config.rows, stage_units(config.parts), layout.k);
  bool encoded = config.rows <= kMaxMediumM ? encode_unit_x(&params.x, p.dtype, x, params.x_boxes)
                                            : encode(&params.x, p.dtype, x);
  if (params.tma_store) {
    encoded &= encode(
        &params.d, p.dtype,
        {p.d, p.m, layout.n, p.d_row_stride, config.rows, kWarpgroupColumns / config.splits});
  }
  if (!encoded) return {cudaErrorInvalidValue, "encoding a tensor map of the W4A16 product"};
  const Variant variant{.consumers = config.consumers,
                        .rows = config.rows,
                        .parts = config.parts,
                        .foreign_scales = p.weight.bf16_scales != (p.dtype == DType::kBF16),
                        .plain = is_plain(p)};
  const Work work{.clusters = config.clusters, .overlaps_previous = overlaps_previous};
  const auto run =
      small_m ? (f16 ? launch_small_m_f16 : launch_small_m_bf16) : (f16 ? launch_f16 : launch_bf16);
  return run(params, variant, work, stream);
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
