#include "cuda/w4a16/sm90/register_resident/select.h"

#include <cstdint>

#include "common/math.h"
#include "cuda/w4a16/sm90/register_resident/plan.h"

namespace xgemm::cuda::w4a16::sm90::register_resident {
namespace {

bool aligned_to(const void* data, int bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// Whether the stream is faster: one wave of its wide tiles then keeps most SMs busy, and an SM's
// three strips take long. (H200, 6144 columns: 2 rows 0.96 to 0.98 of the time for K from 2048 to
// 4096, 1 row 1.02 and 1.03 for 2048 and 3072, 0.98 for 3584 and 4096; 4608 to 5632 columns 0.99
// to 1.07.)
bool stream_is_faster(const Problem& p, int64_t strips_each, const DeviceInfo& device) {
  constexpr int64_t kMaxUnits = 24;
  const int64_t wide_tiles = p.weight.layout.rows();
  return strips_each == kMaxStrips && wide_tiles * 10 >= device.sm_count * 7 &&
         p.m * p.weight.layout.units() > kMaxUnits;
}

}  // namespace

std::optional<Choice> select(const Problem& p, const DeviceInfo& device) {
  const w4::Layout& layout = p.weight.layout;
  const bool takes_type = p.dtype == DType::kF16 || p.dtype == DType::kBF16;
  if (device.capability != 90 || !takes_type) return std::nullopt;
  // The kernel for any number of rows sums in another order.
  if (p.batch_invariant) return std::nullopt;
  if (p.m == 0 || p.m > kMaxRows || layout.n == 0 || layout.k == 0) return std::nullopt;
  if (!is_plain(p)) return std::nullopt;
  const bool whole_copies = p.perm == nullptr && p.x_col_stride == 1 &&
                            (p.m == 1 || p.x_row_stride % 8 == 0) && aligned_to(p.x, 16);
  if (!whole_copies) return std::nullopt;

  const int64_t strips = ceil_div<int64_t>(layout.n, w4::kStripColumns);
  const int64_t each = ceil_div<int64_t>(strips, device.sm_count);
  const int64_t warps = ceil_div<int64_t>(layout.units(), kUnits);
  if (each > kMaxStrips || warps > kMaxWarps || stream_is_faster(p, each, device)) {
    return std::nullopt;
  }
  return Choice{.config = Plan{.rows = static_cast<int>(p.m),
                               .warps = static_cast<int>(warps),
                               .strips = static_cast<int>(each)},
                .reason = "few rows of a small weight, all of which is asked for at once"};
}

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
