// The kernel that a dense product gets on a GPU: a configuration of that kernel's own, and what is
// copied before. Nothing here needs the CUDA toolkit.
#pragma once

#include <cstdint>
#include <variant>

#include "cuda/gemm/align/plan.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/fp32/sm90/tiles.h"
#include "cuda/gemm/gemv/view.h"
#include "cuda/gemm/simt/config.h"
#include "cuda/gemm/sm80/plan.h"
#include "cuda/gemm/sm90/persistent/tiles.h"
#include "cuda/gemm/sm90/single_tile/tile.h"
#include "cuda/gemm/sm90/skinny/tile.h"
#include "cuda/gemm/tf32/plan.h"

namespace xgemm::cuda::gemm {

struct Nothing {};  // the result is empty

// Selection decides all of it once, launch follows. A choice is remembered for problems that differ
// in their pointers, so it holds no operand: `copies` say what of any such problem is copied, and a
// config whether its kernel takes the problem swapped.
struct Choice {
  std::variant<Nothing,
               sm90::persistent::Config,   // wgmma + TMA, persistent tiles
               sm90::skinny::Config,       // wgmma + TMA, operands swapped, K split over a cluster:
                                           // few rows, or few tiles
               sm90::single_tile::Config,  // wgmma, TMA, one tile a CTA: where the start is most of
                                           // the time
               gemv::Config,               // a stream over B for one row, or a handful
               sm80::Config,               // mma.sync: any stride, alignment and GPU from Ampere on
               simt::Config,               // what is left
               fp32::Config,               // FP32 cores: fp32 operands, any stride and alignment
               fp32::sm90::Config,  // FP64 tensor cores of Hopper: fp32 operands; or, of a tile for
                                    // it, one TF32 product by mma.sync
               tf32::Config,        // wgmma: fp32 operands, in three or one TF32 products
               tf32::sm80::Config>  // the same by mma.sync: any stride
      config;
  align::Copies copies{};
  int64_t workspace_bytes = 0;  // that launch wants, for copies first
  const char* reason = "";
};

}  // namespace xgemm::cuda::gemm
