// The kernel that a dense product gets on a GPU. Nothing here needs the CUDA toolkit.
#pragma once

#include <cstdint>

namespace xgemm::cuda::gemm {

enum class Kernel {
  kSm90Persistent,  // wgmma + TMA, persistent tiles
  kSm90Skinny,      // wgmma + TMA, operands swapped, K split over a cluster: few rows, or few tiles
  kGemv,            // a stream over B for one row, or a handful
  kSm80,            // mma.sync: any stride, alignment and GPU from Ampere on
  kSimt,            // what is left
  kFp32,            // FP32 cores: fp32 operands, any stride and alignment
  kTf32,         // wgmma: fp32 operands, in three or one TF32 products; A's rows are the tile's X
  kTf32Swapped,  // the same, but B's columns are
  kTf32Sm80,     // the same by mma.sync: any stride
  kSm90SingleTile,  // wgmma, TMA, one tile a CTA: where the start is most of the time
  kFp32Sm90,        // FP64 tensor cores of Hopper: fp32 operands
  kTf32SingleTile,  // its tiles, but one TF32 product by mma.sync
};

struct Config {
  Kernel kernel = Kernel::kSimt;
  int block_m = 64, block_n = 64, stages = 0;
  int cluster = 1;                      // CTAs that share an operand, or the parts of K
  int splits = 1;                       // of K
  bool stream_k = false;                // clusters take equal shares of K over several tiles
  bool shifted = false;                 // A is read without a copy, though it is not aligned
  bool swapped = false;                 // D^T = B^T A^T is computed, its rows the columns of D
  int ctas = 0;                         // of the grid
  bool tma_store = false;               // else D is written element by element
  bool copy_a = false, copy_b = false;  // first, so that TMA can read them
  int64_t workspace_bytes = 0;          // that launch wants
  const char* reason = "";
};

}  // namespace xgemm::cuda::gemm
