// From a problem to the fp32 kernels' parameters, without CUDA.
#pragma once

#include "cuda/gemm/fp32/params.h"

namespace xgemm::cuda::gemm::align {
struct Copies;
}

namespace xgemm::cuda::gemm::fp32 {

// How many columns of k a stage has, of every kernel but those that TMA feeds.
inline constexpr int kBlockK = 16;

// The rows that the gemv kernels take, and the warps of a CTA. The columns that it may have: of a B
// that lies along k, and of another.
inline constexpr int kMaxGemvRows = 4, kMaxGemvWarps = 16;
inline constexpr int kMaxGemvColumns = 128;
inline constexpr int kGemvColumnsAlongK[] = {4, 8, 16, 32}, kGemvColumns[] = {32, kMaxGemvColumns};

// Groups of threads that share the parts of K of a few tiles, to sum them.
inline constexpr int kPartsGroups = 8;

// Of the kernels on FP32 cores.
struct Config {
  int block_m, block_n;
  int stages;   // 0: a gemv kernel, for block_m rows
  int cluster;  // of these: CTAs that share K
  int splits;   // of K
  int ctas;     // of the grid
};

// All but what depends on the Config: splits, partials, tiles.
Params make_params(const GemmProblem& problem);
// With D's shorter side as rows, for the gemv kernels.
Params make_gemv_params(const GemmProblem& problem);
// The one or the other, as a tile wants it, and the tiles.
Params make_tile_params(const GemmProblem& problem, int block_m, int block_n);
// How a CTA of the gemv kernels that has so many columns works on its part of K.
struct GemvCut {
  int warps;
  double passes;  // of a warp: in each it loads all that it multiplies, in the last one maybe less
};
GemvCut gemv_cut(const Params& params, int columns, int64_t k_per_split, int64_t splits);
// Sets what copies take of a workspace. False where they cannot be made: of more than one batch
// dimension, or too large.
bool place_copies(const GemmProblem& problem, align::Copies* copies);
// Of so many CTAs a kernel that TMA feeds has one for each tile that is not split, and one for
// each part of the others.
constexpr int whole_tiles(int64_t tiles, int64_t splits, int64_t ctas) {
  return static_cast<int>(splits == 1 ? tiles : (tiles * splits - ctas) / (splits - 1));
}
// Whether TMA can bring an operand of so many rows, `batch` the member of BatchDim that is its
// stride.
bool fits_tma(const Params& params, const OperandParams& operand, int64_t rows,
              int64_t BatchDim::* batch);
void set_splits(Params* params, int splits, void* workspace);

}  // namespace xgemm::cuda::gemm::fp32
