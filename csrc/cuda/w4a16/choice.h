// The kernel that a product with a packed weight gets: a configuration of that kernel's own.
#pragma once

#include <cstdint>
#include <variant>

#include "cuda/w4a16/sm80/config.h"
#include "cuda/w4a16/sm90/register_resident/plan.h"
#include "cuda/w4a16/sm90/skinny/config.h"
#include "cuda/w4a16/sm90/wgmma/config.h"

namespace xgemm::cuda::w4a16 {

struct Nothing {};  // the result is empty

struct Choice {
  std::variant<Nothing,
               sm80::Config,          // units by cp.async, mma.sync: any format, stride, alignment
               sm90::skinny::Config,  // a stream over the weight by bulk copies, mma.sync, K split
                                      // over warps and a cluster
               sm90::register_resident::Plan,  // all of a small weight in registers, asked for at
                                               // once, mma.sync
               sm90::wgmma::Config>  // wgmma with the weight dequantized in registers, TMA,
                                     // persistent tiles
      config;
  int64_t workspace_bytes = 0;  // that launch wants
  const char* reason = "";
};

}  // namespace xgemm::cuda::w4a16
