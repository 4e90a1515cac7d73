// From a problem to the fp32 kernels' parameters, without CUDA.
#pragma once

#include "cuda/gemm/fp32/copy_plan.h"
#include "cuda/gemm/fp32/params.h"

namespace xgemm::cuda::gemm::fp32 {

// How many columns of k a stage has, of every kernel but those that TMA feeds.
inline constexpr int kBlockK = 16;

// The rows that the kernels for few of them take; the columns and the warps of a CTA.
inline constexpr int kGemvMaxRows = 4, kGemvMaxColumns = 128, kGemvMaxWarps = 16;

// Groups of threads that share the parts of K of a few tiles, to sum them.
inline constexpr int kPartsGroups = 8;

// All but what depends on the Config: splits, partials, tiles.
Params make_params(const GemmProblem& problem);
// With D's shorter side as rows, for the kernels that take few of them.
Params make_gemv_params(const GemmProblem& problem);
// The warps of a CTA of the gemv kernels that has so many columns.
int gemv_warps(const Params& params, int columns);
// A copy of A (or B) along its rows (columns), as the large tile wants it, to `dst`, a multiple of
// 16; the problem reads the copy from then on. At most one batch dimension.
Copy plan_copy(GemmProblem* problem, bool of_a, void* dst);
// What such copies take; negative where they cannot be made.
int64_t copies_bytes(const GemmProblem& problem, bool a, bool b);
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
