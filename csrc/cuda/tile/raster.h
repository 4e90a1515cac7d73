// In which order the CTAs of one wave have the tiles of D, so that they ask L2 for little.
//
// CTAs with consecutive numbers run on the SMs of one GPC. What several of them ask for at about
// the same time, L2 gives the GPC once. So the CTAs of a GPC should have a block of tiles that is
// nearly square, not a long row of them.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace xgemm::cuda {

// Tiles are numbered along the shorter side of D ("fast") first or, where there are groups, along
// the fast tiles of a group, so that a group of them has all slow tiles before the next one begins.
// The grid is then [groups][slow][group]. If the last group is smaller its tiles take the first
// numbers of [slow][group], and the CTAs with the others have nothing to do.
struct Raster {
  uint8_t group = 0;  // fast tiles of a group; 0: there are no groups
  uint8_t whole_groups = 0;
  uint8_t last_group = 0;  // fast tiles of the one behind these; 0: there is none
  uint16_t by_last = 0;    // 2^kByLastBits over that, rounded up

  static constexpr int kByLastBits = 15;

  XGEMM_HOST_DEVICE constexpr uint32_t groups() const {
    return whole_groups + (last_group > 0 ? 1u : 0u);
  }
};

struct RasterPlace {
  uint32_t fast, slow;  // slow: behind the last tile where the CTA has none
};

// Of the CTA at (x, y, z) of the grid.
XGEMM_HOST_DEVICE constexpr RasterPlace place_in(const Raster& raster, uint32_t x, uint32_t y,
                                                 uint32_t z) {
  const uint32_t first = z * raster.group;
  if (z < raster.whole_groups) return {first + x, y};
  const uint32_t number = x + y * raster.group;
  const uint32_t slow = number * raster.by_last >> Raster::kByLastBits;
  return {first + number - slow * raster.last_group, slow};
}

// With groups of `group` of `fast` tiles.
constexpr Raster raster_of(int64_t fast, int64_t group) {
  const int64_t last = fast % group;
  const int64_t by_last = last > 0 ? ceil_div<int64_t>(1 << Raster::kByLastBits, last) : 0;
  return {static_cast<uint8_t>(group), static_cast<uint8_t>(fast / group),
          static_cast<uint8_t>(last), static_cast<uint16_t>(by_last)};
}

// Of one wave with `fast` tiles along the shorter side and `stages` of K. By an H200's times of
// 1,621 tiles of random layers in seven orders (docs/measurements/dense.md, "The order of tiles"):
// fewer fast tiles make blocks enough, and CTAs with a short K have no time to drift apart.
constexpr Raster raster_of_wave(int64_t fast, int64_t stages) {
  constexpr int64_t kMaxGroup = 5, kMinFast = 8, kMinStages = 48;
  if (fast < kMinFast || stages < kMinStages) return {};
  return raster_of(fast, ceil_div(fast, ceil_div(fast, kMaxGroup)));
}

}  // namespace xgemm::cuda
