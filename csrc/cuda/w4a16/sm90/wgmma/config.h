// A tile of the wgmma kernel, and how clusters share out the tiles.
#pragma once

#include "cuda/w4a16/sm90/wgmma/tile.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {

struct Config {
  int consumers;  // warpgroups that store: 64 columns of D each
  int parts;      // small-M tiles: warpgroups that share the K of 64 columns
  int rows;       // of X
  int sharers;    // CTAs of a cluster that share X
  int splits;     // CTAs of a cluster that share K
  int clusters;   // of the grid
  bool stream_k;  // clusters take equal shares of all tiles' K
  bool by_rows;   // a launch for each tile of rows: bits must not depend on their number
  bool copy_x;    // first, behind the partial sums of stream-K, so that TMA can read it

  constexpr int columns() const { return consumers * kWarpgroupColumns; }  // of D
  constexpr int cluster() const { return sharers * splits; }
  constexpr int ctas() const { return clusters * cluster(); }
};

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
