// Dense products, as functions over addresses.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <iterator>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/gemm/api.h"
#include "cuda/gemm/gemv/view.h"
#include "cuda/gemm/select.h"
#include "cuda/gemm/sm90/persistent/tiles.h"
#include "cuda/gemm/sm90/single_tile/tile.h"
#include "cuda/gemm/sm90/skinny/tile.h"
#include "cuda/gemm/sm90/tma_fit.h"
#include "emulator/engine.h"

namespace bind_gemm {

namespace py = pybind11;
namespace gemm = xgemm::cuda::gemm;
namespace emulator = xgemm::emulator;

namespace {

using Address = uintptr_t;
using Matrix = std::tuple<Address, int64_t, int64_t>;  // strides of rows and columns, in elements
using Batch = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>;  // size; strides: a, b, c, d

xgemm::GemmOperand operand_of(const Matrix& matrix) {
  const auto [address, row_stride, col_stride] = matrix;
  return {reinterpret_cast<const void*>(address), row_stride, col_stride};
}

xgemm::GemmProblem make_problem(std::tuple<int64_t, int64_t, int64_t> mnk, int dtype,
                                const Matrix& a, const Matrix& b, const Matrix& c, const Matrix& d,
                                float alpha, float beta, Address bias, int64_t bias_stride,
                                int activation, const std::vector<Batch>& batch, int precision) {
  xgemm::GemmProblem problem;
  problem.precision = static_cast<xgemm::Precision>(precision);
  std::tie(problem.m, problem.n, problem.k) = mnk;
  problem.dtype = static_cast<xgemm::DType>(dtype);
  problem.a = operand_of(a), problem.b = operand_of(b), problem.c = operand_of(c);
  std::tie(std::ignore, problem.d_row_stride, problem.d_col_stride) = d;
  problem.d = reinterpret_cast<void*>(std::get<0>(d));
  problem.alpha = alpha, problem.beta = beta;
  problem.bias = reinterpret_cast<const void*>(bias), problem.bias_stride = bias_stride;
  problem.activation = static_cast<xgemm::Activation>(activation);
  if (batch.size() > xgemm::kMaxBatchDims) throw std::invalid_argument("too many batch dimensions");
  for (const auto& [size, of_a, of_b, of_c, of_d] : batch) {
    problem.batch[problem.batch_dims++] = {size, of_a, of_b, of_c, of_d};
  }
  return problem;
}

void launch(const xgemm::GemmProblem& problem, const gemm::Choice& choice) {
  const emulator::Workspace workspace(choice.workspace_bytes);
  const xgemm::Status status = gemm::launch(problem, choice, workspace.get(), nullptr);
  if (!status.ok()) {
    throw std::runtime_error(std::string(status.where) + ": " + cudaGetErrorString(status.error));
  }
}

// The first shape with the tile, of the side that select tries first.
gemm::gemv::Config gemv_of(const xgemm::GemmProblem& problem, const gemm::Fields& f) {
  for (const bool swapped : {problem.n < problem.m, problem.n >= problem.m}) {
    const auto view = gemm::gemv::view_of(problem, swapped);
    const int tile = swapped ? f.block_m : f.block_n;
    for (const gemm::gemv::Shape& shape : gemm::gemv::kShapes) {
      if (view && shape.tile == tile && gemm::gemv::fits(shape, *view)) {
        return {&shape, swapped, f.splits, f.cluster, f.ctas};
      }
    }
  }
  throw std::invalid_argument("no such matrix-vector kernel");
}

gemm::fp32::sm90::Config fp32_sm90_of(const xgemm::GemmProblem& problem, const gemm::Fields& f) {
  namespace sm90 = gemm::fp32::sm90;
  const auto p = gemm::fp32::make_tile_params(problem, f.block_m, f.block_n);
  const bool by_tma = gemm::fp32::fits_tma(p, p.a, p.m, &xgemm::BatchDim::a) &&
                      gemm::fp32::fits_tma(p, p.b, p.n, &xgemm::BatchDim::b);
  if (std::string(f.kernel) == "tf32_single_tile") {
    return {&sm90::kTileOfTf32, !by_tma, f.splits, f.ctas};
  }
  for (const sm90::TileShape* shape :
       {&sm90::kTile64x64, &sm90::kTile32x128, &sm90::kTileOfWarp, &sm90::kTileSliced}) {
    if (shape->block_m == f.block_m && shape->block_n == f.block_n && shape->stages == f.stages) {
      return {shape, !by_tma, f.splits, f.ctas};
    }
  }
  throw std::invalid_argument("no such tile");
}

// What a test wants, by the fields of every kernel.
gemm::Choice choice_of(const xgemm::GemmProblem& given, const gemm::Fields& f) {
  using gemm::align::Order;
  const std::string kernel = f.kernel;
  const bool fp32 = kernel.starts_with("fp32") || kernel == "tf32_single_tile";
  const auto order = [&](Order of_tma) {
    return fp32 ? Order::kAcrossK : kernel.starts_with("tf32") ? Order::kAlongK : of_tma;
  };
  gemm::Choice choice;
  choice.workspace_bytes = f.workspace_bytes, choice.reason = "a test wants it";
  if (f.copy_a) choice.copies.a = order(gemm::align::order_of_a(given));
  if (f.copy_b) choice.copies.b = order(gemm::align::order_of_b(given));
  xgemm::GemmProblem problem = given;
  if (choice.copies.any()) {
    choice.copies.bytes = gemm::align::read_copies(&problem, choice.copies, nullptr).bytes;
  }

  if (kernel == "sm90_persistent") {
    choice.config = gemm::sm90::persistent::Config{f.block_n, f.stages,  f.cluster, f.splits,
                                                   f.ctas,    f.shifted, f.swapped, f.tma_store};
  } else if (kernel == "sm90_skinny") {
    choice.config = gemm::sm90::skinny::Config{f.block_m, f.block_n, f.stages, f.splits, f.ctas};
  } else if (kernel == "sm90_single_tile") {
    namespace single_tile = gemm::sm90::single_tile;
    const bool k_major = gemm::sm90::a_k_major(problem) && gemm::sm90::b_k_major(problem);
    if (f.swapped) std::swap(problem.m, problem.n);
    const auto rows = xgemm::ceil_div<int64_t>(problem.m, f.block_m);
    const auto columns = xgemm::ceil_div<int64_t>(problem.n, f.block_n);
    const auto clusters = single_tile::clusters_of(rows, columns, f.cluster);
    const int64_t fast = problem.m < problem.n ? rows : columns;
    choice.config = single_tile::Config{
        &single_tile::shape_of(f.block_m, f.block_n, k_major),
        f.block_m,
        f.block_n,
        clusters,
        f.group > 0 ? xgemm::cuda::raster_of(fast, f.group) : xgemm::cuda::Raster{},
        f.splits,
        f.ctas,
        f.swapped};
  } else if (kernel == "gemv") {
    choice.config = gemv_of(problem, f);
  } else if (kernel == "sm80") {
    choice.config = gemm::sm80::Config{f.block_m, f.block_n, f.stages, f.splits, f.ctas};
  } else if (kernel == "simt") {
    choice.config = gemm::simt::Config{f.ctas};
  } else if (kernel == "fp32") {
    choice.config = gemm::fp32::Config{f.block_m, f.block_n, f.stages, f.cluster, f.splits, f.ctas};
  } else if (kernel == "fp32_sm90" || kernel == "tf32_single_tile") {
    choice.config = fp32_sm90_of(problem, f);
  } else if (kernel == "tf32" || kernel == "tf32_swapped") {
    const bool swapped = kernel == "tf32_swapped";
    choice.config =
        gemm::tf32::Config{{swapped ? f.block_n : f.block_m, swapped ? f.block_m : f.block_n},
                           swapped,
                           f.splits,
                           f.ctas};
  } else if (kernel == "tf32_sm80") {
    choice.config = gemm::tf32::sm80::Config{f.splits, f.ctas};
  } else {
    throw std::invalid_argument("no such kernel: " + kernel);
  }
  return choice;
}

// What the kernels are compiled for.
void bind_tiles(py::module_& m) {
  namespace single_tile = gemm::sm90::single_tile;
  namespace skinny = gemm::sm90::skinny;
#define XGEMM_TILE(block_n, stages) std::pair(block_n, stages),
  m.attr("PERSISTENT_TILES") = std::vector<std::pair<int, int>>{XGEMM_SM90_TILES(XGEMM_TILE)};
#undef XGEMM_TILE
  std::vector<std::pair<int, int>> gemv_shapes;  // vectors, and `wide` of a tile
  for (const auto& shape : gemm::gemv::kShapes) gemv_shapes.emplace_back(shape.narrow, shape.tile);
  m.attr("GEMV_SHAPES") = gemv_shapes;
  m.attr("SKINNY_COLUMNS") =
      std::vector<int>(std::begin(skinny::kColumns), std::end(skinny::kColumns));
  // Rows, columns, stages, and whether A lies along M and B along N.
  std::vector<std::tuple<int, int, int, bool, bool>> shapes;
  for (const single_tile::Shape& shape : single_tile::kShapes) {
    for (const bool a_mn : {false, true}) {
      for (const bool b_mn : {false, true}) {
        if (!shape.compiled_for(a_mn, b_mn)) continue;
        shapes.emplace_back(shape.block_m, shape.block_n, shape.stages, a_mn, b_mn);
      }
    }
  }
  m.attr("SINGLE_TILE_SHAPES") = shapes;
}

}  // namespace

void define(py::module_& m) {
  bind_tiles(m);
  // Named apart from those of tests/cpp, which may be loaded beside this module.
  py::class_<xgemm::GemmProblem>(m, "Problem", py::module_local())
      .def(py::init(&make_problem), py::kw_only(), py::arg("mnk"), py::arg("dtype"), py::arg("a"),
           py::arg("b"), py::arg("c"), py::arg("d"), py::arg("alpha") = 1.0f,
           py::arg("beta") = 0.0f, py::arg("bias") = 0, py::arg("bias_stride") = 1,
           py::arg("activation") = 0, py::arg("batch") = std::vector<Batch>{},
           py::arg("precision") = 0);
  py::class_<gemm::Choice>(m, "Choice", py::module_local());
  m.def(
      "choice",
      [](const xgemm::GemmProblem& problem, const std::string& kernel, int block_m, int block_n,
         int stages, int cluster, int splits, int group, int ctas, bool tma_store, bool copy_a,
         bool copy_b, int64_t workspace_bytes, bool shifted, bool swapped) {
        return choice_of(problem, {.kernel = kernel.c_str(),
                                   .block_m = block_m,
                                   .block_n = block_n,
                                   .stages = stages,
                                   .cluster = cluster,
                                   .splits = splits,
                                   .group = group,
                                   .shifted = shifted,
                                   .swapped = swapped,
                                   .ctas = ctas,
                                   .tma_store = tma_store,
                                   .copy_a = copy_a,
                                   .copy_b = copy_b,
                                   .workspace_bytes = workspace_bytes});
      },
      py::arg("problem"), py::kw_only(), py::arg("kernel"), py::arg("block_m"), py::arg("block_n"),
      py::arg("stages"), py::arg("cluster"), py::arg("splits"), py::arg("group"), py::arg("ctas"),
      py::arg("tma_store"), py::arg("copy_a"), py::arg("copy_b"), py::arg("workspace_bytes"),
      py::arg("shifted"), py::arg("swapped"));
  m.def("select", [](const xgemm::GemmProblem& problem, int capability, int sm_count) {
    return gemm::select_config(problem, {.sm_count = sm_count, .capability = capability});
  });
  // All choices of a kernel that are weighed.
  m.def("listed", [](const xgemm::GemmProblem& problem, int capability, int sm_count,
                     const std::string& kernel) {
    xgemm::cuda::choose::Listing<gemm::Choice> listing;
    gemm::select_config(problem, {.sm_count = sm_count, .capability = capability}, &listing);
    std::vector<gemm::Choice> choices;
    for (const auto& scored : listing) {
      if (kernel == gemm::fields_of(problem, scored.choice).kernel) {
        choices.push_back(scored.choice);
      }
    }
    return choices;
  });
  m.def("explain", &gemm::explain);
  m.def("launch", &launch);
}

}  // namespace bind_gemm
