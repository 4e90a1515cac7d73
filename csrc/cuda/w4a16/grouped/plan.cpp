// How a mixture of experts is cut into tiles.
#include <algorithm>

#include "common/math.h"
#include "cuda/w4a16/grouped/problem.h"
#include "cuda/w4a16/grouped/select.h"
#include "cuda/w4a16/grouped/tile.h"

namespace xgemm::cuda::w4a16::grouped {
namespace {

// Of an SM, bytes, as the CUDA programming guide says.
int shared_memory(int capability) {
  if (capability == 80 || capability == 87) return 164 << 10;
  return capability >= 90 && capability < 120 ? 228 << 10 : 100 << 10;
}
constexpr int kReserved = 1 << 10;  // of each CTA, by the system

// As many as the CTAs of an SM leave room for, or fewer CTAs; 0 where not even one has a stage.
template <typename Tile>
int stages_of(int unit_bytes, int steps, int64_t ctas, const DeviceInfo& device) {
  const int64_t on_each = ceil_div<int64_t>(ctas, std::max(device.sm_count, 1));
  const int most = static_cast<int>(std::clamp<int64_t>(on_each, 1, Tile::kCtasPerSm));
  for (int on_sm = most; on_sm > 0; --on_sm) {
    const int each = shared_memory(device.capability) / on_sm - kReserved;
    int stages = std::min(kMaxStages, std::max(steps, 1));
    while (stages > 0 && Tile::shared_bytes(unit_bytes, stages) > each) --stages;
    if (stages > 0) return stages;
  }
  return 0;
}

int wanted_rows(const Problem& p) {
  if (p.wanted.block_m > 0) return p.wanted.block_m;
  const int64_t active = std::max<int64_t>(std::min(p.slots, p.experts), 1);  // at the most
  return mma_sync_rows(static_cast<double>(p.slots) / static_cast<double>(active));
}

// Buckets are the experts, and the slots of none. Each has a tile that is not full.
int64_t most_tiles(const Problem& p, int block_m) {
  const int64_t buckets = std::min(p.slots, p.experts + 1);
  return buckets + (p.slots - buckets) / block_m;
}

}  // namespace

Plan make_plan(const Problem& p, const DeviceInfo& device) {
  const w4::Layout& layout = p.weight.layout;
  const int unit_bytes = static_cast<int>(layout.unit_bytes());
  const int steps = static_cast<int>(ceil_div<int64_t>(layout.units(), kWarps));
  Plan plan{};
  plan.overlap = device.capability == 90;
  plan.block_m = select_wgmma(p, device);
  plan.wgmma = plan.block_m > 0;
  if (!plan.wgmma) plan.block_m = wanted_rows(p);
  const auto try_tile = [&](auto tile) {
    using Tile = decltype(tile);
    if (plan.stages > 0 || plan.block_m < Tile::kBlockM) return;
    const int64_t ctas = most_tiles(p, Tile::kBlockM) * ceil_div<int64_t>(layout.n, kColumns);
    plan.stages = stages_of<Tile>(unit_bytes, steps, ctas, device);
    if (plan.stages > 0) plan.block_m = Tile::kBlockM;
  };
  if (p.dtype == DType::kF32) {
    plan.block_m = 8;
  } else if (!plan.wgmma) {
    try_tile(Tile32{}), try_tile(Tile16{}), try_tile(Tile8{});
  }
  plan.tiles = most_tiles(p, plan.block_m);
  if (plan.wgmma) {
    plan.ctas =
        static_cast<int>(std::min<int64_t>(plan.tiles * wgmma_column_blocks(p), device.sm_count));
  }
  if (p.dtype == DType::kF32) return plan;

  plan.x_row_stride = round_up<int64_t>(layout.k, 8);
  plan.copy_x =
      p.perm != nullptr || p.x_row_stride % 8 != 0 || reinterpret_cast<uintptr_t>(p.x) % 16 != 0;
  plan.gate_after = is_gated(p.activation) && !gates_itself(p);
  const int64_t copy = plan.copy_x ? p.slots * plan.x_row_stride * 2 : 0;
  plan.product_offset = round_up<int64_t>(copy, 256);
  plan.workspace_bytes = plan.gate_after ? plan.product_offset + p.slots * layout.n * 2 : copy;
  return plan;
}

}  // namespace xgemm::cuda::w4a16::grouped
