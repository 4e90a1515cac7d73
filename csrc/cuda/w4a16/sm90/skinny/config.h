// How the skinny kernel shares out a product.
#pragma once

#include "cuda/w4a16/sm90/skinny/split.h"

namespace xgemm::cuda::w4a16::sm90::skinny {

struct Config {
  Split split;   // of K, over a cluster and its warps
  int clusters;  // of the grid, at most: no more than the GPU runs at once
};

}  // namespace xgemm::cuda::w4a16::sm90::skinny
