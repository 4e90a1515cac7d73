#include "cuda/w4a16/sm90/whole/select.h"

#include <cstdint>

#include "common/math.h"

namespace xgemm::cuda::w4a16::sm90::whole {
namespace {

bool aligned_to(const void* data, int bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

}  // namespace

Plan plan_of(const Config& config) {
  return {.rows = config.block_m,
          .warps = config.warps,
          .strips = config.block_n / static_cast<int>(w4::kStripColumns)};
}

bool select(const Problem& p, const DeviceInfo& device, Config* config) {
  const w4::Layout& layout = p.weight.layout;
  if (device.capability != 90 || (p.dtype != DType::kF16 && p.dtype != DType::kBF16)) return false;
  // The kernel for any number of rows sums in another order.
  if (p.batch_invariant) return false;
  if (p.m == 0 || p.m > kMostRows || layout.n == 0 || layout.k == 0) return false;
  if (!is_plain(p)) return false;
  const bool whole_copies = p.perm == nullptr && p.x_col_stride == 1 &&
                            (p.m == 1 || p.x_row_stride % 8 == 0) && aligned_to(p.x, 16);
  if (!whole_copies) return false;

  const int64_t strips = ceil_div<int64_t>(layout.n, w4::kStripColumns);
  const int64_t each = ceil_div<int64_t>(strips, device.sm_count);
  const int64_t warps = ceil_div<int64_t>(layout.units(), kUnits);
  if (each > kMostStrips || warps > kMostWarps) return false;
  *config = {.kernel = Kernel::kSm90Whole,
             .block_m = static_cast<int>(p.m),
             .block_n = static_cast<int>(each * w4::kStripColumns),
             .warps = static_cast<int>(warps),
             .stages = 1,
             .ctas = static_cast<int>(ceil_div(strips, each)),
             .reason = "few rows of a small weight, all of which is asked for at once"};
  return true;
}

}  // namespace xgemm::cuda::w4a16::sm90::whole
