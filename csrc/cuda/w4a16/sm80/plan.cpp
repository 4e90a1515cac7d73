#include "cuda/w4a16/sm80/plan.h"

#include <algorithm>
#include <bit>

#include "common/math.h"

namespace xgemm::cuda::w4a16::sm80 {

bool x_fits(const Problem& p) {
  const bool one_row = p.m <= 1, one_column = p.weight.layout.k <= 1;
  return p.perm == nullptr && (p.x_col_stride == 1 || one_column) &&
         (p.x_row_stride % 8 == 0 || one_row) && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
}

int64_t copied_row_stride(const Problem& p) { return round_up<int64_t>(p.weight.layout.k, 8); }

Params make_params(const Problem& p) {
  const w4::Layout& layout = p.weight.layout;
  Params params{};
  params.m = p.m, params.n = layout.n;
  params.k = static_cast<int>(layout.k);
  params.units = static_cast<int>(layout.units());
  params.weight = p.weight.data;
  params.weight_rows = layout.rows(), params.row_bytes = layout.row_bytes();
  params.unit_bytes = static_cast<int>(layout.unit_bytes());
  params.strip_bytes = static_cast<int>(layout.strip_bytes());
  params.per_channel = layout.per_channel();
  const int64_t group = layout.per_channel() ? w4::kUnitK : layout.group_size;
  params.group_quarters_log2 = std::countr_zero(static_cast<uint64_t>(group / 32));
  params.zeros = layout.zeros, params.bf16_scales = p.weight.bf16_scales;
  params.x = p.x, params.x_row_stride = p.x_row_stride;
  params.bias = p.bias, params.bias_stride = p.bias_stride;
  params.activation = p.activation;
  params.d = p.d;
  params.d_row_stride = p.d_row_stride, params.d_col_stride = p.d_col_stride;
  params.d_vector = p.d_col_stride == 1 && (p.d_row_stride % 4 == 0 || p.m <= 1) &&
                    reinterpret_cast<uintptr_t>(p.d) % 8 == 0;
  params.partial_stride = round_up<int64_t>(layout.n, 4);
  return params;
}

int64_t rows_per_launch(const Params& p, int splits) {
  constexpr int64_t kMaxWorkspace = int64_t{1} << 28, kRows = 64;  // a multiple of every tile's
  if (splits == 1) return p.m;
  const int64_t rows = kMaxWorkspace / (4 * splits * p.partial_stride) / kRows * kRows;
  return std::min(p.m, std::max(rows, kRows));
}

}  // namespace xgemm::cuda::w4a16::sm80
