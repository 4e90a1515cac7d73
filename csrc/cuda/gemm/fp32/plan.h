// From a problem to the fp32 kernels' parameters, without CUDA.
#pragma once

#include "cuda/choose/device_constants.h"
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

// Sums of parts of K: a thread waits for memory once for eight parts, and once for each of the
// rest. Where there are more, and not so many quads of columns that others would fill in, groups of
// threads share the parts.
inline constexpr int kPartsGroups = 8, kPartsOfWait = 8;
inline constexpr int64_t kMaxSharedQuads = 32 * 1024;
inline constexpr double kPartsWaitUs = 0.172;  // for L2 (a fit: docs/measurements/fp32.md)
constexpr bool shares_parts(int64_t parts, int64_t quads) {
  return parts > kPartsOfWait && quads <= kMaxSharedQuads;
}
constexpr int64_t waits_for_parts(int64_t parts, int64_t quads) {
  const int64_t own = shares_parts(parts, quads) ? ceil_div<int64_t>(parts, kPartsGroups) : parts;
  return own / kPartsOfWait + own % kPartsOfWait;
}

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
  int warps, parts;  // of the CTA; of its k, which warps share
  double passes;  // of a warp: in each it loads all that it multiplies, in the last one maybe less
  bool vectors;   // loads are of 16 bytes
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
// What the sum of parts takes that are whole matrices of so many bytes, and the launch of its own.
double reduce_us(int64_t splits, int64_t bytes, const choose::DeviceConstants& gpu);

}  // namespace xgemm::cuda::gemm::fp32
