// How a dense problem maps to the matrix-vector kernels.
#pragma once

#include <optional>

#include "common/gemm_problem.h"
#include "cuda/gemm/gemv/params.h"

namespace xgemm::cuda::gemm::gemv {

enum class Layout { kKMajor, kWideMajor };  // which dimension of W is contiguous

inline constexpr int kRowWarps = 16;  // of row_kernel, over its vectors

// What a kernel is compiled for.
struct Shape {
  Layout layout;
  int narrow;       // vectors, at most
  int tile;         // of `wide`, a CTA's
  int step_k;       // k that a warp takes at once
  int most_warps;   // of a CTA
  int ctas_per_sm;  // of most_warps
  int least_k = 1;
  bool by_rows = false;  // row_kernel
};
// Memory likes long runs, but the wider a tile, the fewer there are: 512 bytes a row pay where
// there is enough k to split (1x29392x17400: 289 us by them, 339 by 256 bytes; 1x14336x2048: 22.2
// and 20.7 us). row_kernel's CTAs are many, and that each waits for the launch before costs the GPU
// about 1.25 ns: with little k longer than reading a row takes (1x83716x1592: 106 us; 69 by tiles
// of two rows, or without the wait).
inline constexpr Shape kShapes[] = {
    {Layout::kKMajor, 1, 1, 512, kRowWarps, 4, 2560, true},      //
    {Layout::kKMajor, 2, 2, 512, kRowWarps / 2, 4, 2048, true},  //
    {Layout::kKMajor, 1, 2, 512, 8, 5},                          //
    {Layout::kKMajor, 2, 4, 256, 8, 5},                          //
    {Layout::kKMajor, 4, 8, 128, 8, 5},                          //
    {Layout::kKMajor, 8, 8, 128, 8, 4},                          //
    {Layout::kWideMajor, 1, 256, 8, 16, 2, 4096},                //
    {Layout::kWideMajor, 1, 128, 16, 16, 2},                     //
    {Layout::kWideMajor, 8, 64, 32, 12, 2},                      //
};
inline constexpr int kMaxSplits = 8;  // CTAs of a portable cluster

struct Config {
  const Shape* shape;  // of kShapes
  bool swapped;        // W is A
  int splits;          // of k
  int cluster;         // CTAs that sum their splits, or 1: through memory
  int ctas;            // of the grid
};

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
