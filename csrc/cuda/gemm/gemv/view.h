// How a dense problem maps to the matrix-vector kernels.
#pragma once

#include <optional>

#include "common/gemm_problem.h"
#include "common/math.h"
#include "cuda/gemm/gemv/params.h"

namespace xgemm::cuda::gemm::gemv {

enum class Layout { kKMajor, kWideMajor };  // which dimension of W is contiguous

inline constexpr int kRowWarps = 16;  // of row_kernel, over its vectors

// What a kernel is compiled for.
struct Shape {
  Layout layout;
  int narrow;            // vectors, at most
  int tile;              // of `wide`, a CTA's
  int step_k;            // k that a warp takes at once
  int most_warps;        // of a CTA
  int ctas_per_sm;       // of most_warps
  bool by_rows = false;  // row_kernel

  // Loads at any alignment take more registers.
  constexpr int ctas_of_sm(bool aligned) const { return ctas_per_sm - (aligned ? 0 : 1); }
  // Of X, 16 bytes a lane, in a step of a warp.
  constexpr double x_loads() const { return narrow * step_k < 256 ? 1 : narrow * step_k / 256.0; }
};
inline constexpr Shape kShapes[] = {
    {Layout::kKMajor, 1, 1, 512, kRowWarps, 4, true},      //
    {Layout::kKMajor, 2, 2, 512, kRowWarps / 2, 4, true},  //
    {Layout::kKMajor, 1, 2, 512, 8, 5},                    //
    {Layout::kKMajor, 2, 4, 256, 8, 5},                    //
    {Layout::kKMajor, 4, 8, 128, 8, 5},                    //
    {Layout::kKMajor, 8, 8, 128, 8, 4},                    //
    {Layout::kWideMajor, 1, 256, 8, 16, 2},                //
    {Layout::kWideMajor, 1, 128, 16, 16, 2},               //
    {Layout::kWideMajor, 8, 64, 32, 12, 2},                //
};
inline constexpr int kMaxSplits = 8;  // CTAs of a portable cluster

struct Config {
  const Shape* shape;  // of kShapes
  bool swapped;        // W is A
  int splits;          // of k
  int cluster;         // CTAs that sum their splits, or 1: through memory
  int ctas;            // of the grid
};

// How a CTA's warps share out its split of K.
struct Cut {
  int k_per_split, passes, warps;
};
constexpr Cut cut_of(const Shape& shape, int k, int splits) {
  const int steps = ceil_div(ceil_div(k, splits), shape.step_k);
  const int passes = ceil_div(steps, shape.most_warps);
  return {steps * shape.step_k, passes, ceil_div(steps, passes)};
}

// The problem in the kernels' terms; `params` lacks splits, k_per_split, partials and first_batch.
struct View {
  Params params;
  Layout layout;
  bool aligned;  // every row of W and X starts at a multiple of 16 bytes
};

// With B, or A, as W. Nothing where that is not for these kernels.
std::optional<View> view_of(const GemmProblem& problem, bool swapped);
// Whether the kernel of a shape takes it.
bool fits(const Shape& shape, const View& view);

}  // namespace xgemm::cuda::gemm::gemv
