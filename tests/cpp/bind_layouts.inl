// csrc/cuda/tile/layout_index.h and raster.h for pytest.
#include <pybind11/pybind11.h>

#include <tuple>
#include <vector>

#include "cuda/tile/layout_index.h"
#include "cuda/tile/raster.h"

namespace bind_layouts {

namespace py = pybind11;
namespace layout = xgemm::cuda::layout;

namespace {

std::tuple<int, int> pair(layout::Place place) { return {place.row, place.column}; }

// The place of each CTA of the grid, in the order of their numbers.
std::vector<std::tuple<uint32_t, uint32_t>> raster_places(int fast, int slow, int group) {
  const auto raster = xgemm::cuda::raster_of(fast, group);
  std::vector<std::tuple<uint32_t, uint32_t>> places;
  for (uint32_t z = 0; z < raster.groups(); ++z) {
    for (int y = 0; y < slow; ++y) {
      for (int x = 0; x < group; ++x) {
        const auto place = xgemm::cuda::place_in(raster, x, y, z);
        places.emplace_back(place.fast, place.slow);
      }
    }
  }
  return places;
}

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
  m.def("raster_places", &raster_places);
  m.def("raster_group",
        [](int fast, int stages) { return xgemm::cuda::raster_of_wave(fast, stages).group; });
}

}  // namespace bind_layouts
