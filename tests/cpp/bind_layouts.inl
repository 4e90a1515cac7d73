// csrc/cuda/tile/layout_index.h for pytest.
#include <pybind11/pybind11.h>

#include <tuple>

#include "cuda/tile/layout_index.h"

namespace bind_layouts {

namespace py = pybind11;
namespace layout = xgemm::cuda::layout;

namespace {

std::tuple<int, int> pair(layout::Place place) { return {place.row, place.column}; }

}  // namespace

void define(py::module_& m) {
  m.def("swizzled", &layout::swizzled);
  m.def("swizzle_xor", &layout::swizzle_xor);
  m.def("fragment_place", [](int rows, int core_columns, int thread, int index) {
    return pair(layout::fragment_place(rows, core_columns, thread, index));
  });
  m.def("grouped_tile", [](int index, int rows, int columns, int group) {
    return pair(layout::grouped_tile(index, rows, columns, group));
  });
  m.def("hilbert_tile",
        [](int index, int count) { return pair(layout::hilbert_tile(index, count)); });
  m.def("stripe_share", &layout::stripe_share);
}

}  // namespace bind_layouts
