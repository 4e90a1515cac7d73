// What the ladders' ops ask of their arguments.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "ops/checks.h"

namespace xgemm::ops::ladder {

template <typename Rung>
const Rung& find_rung(const char* op, std::span<const Rung> rungs, int64_t rung) {
  if (rung < 0 || rung >= static_cast<int64_t>(rungs.size())) {
    value_error(op, ": rung must be in 0..", rungs.size() - 1, ", got ", rung);
  }
  return rungs[static_cast<size_t>(rung)];
}

inline void require_contiguous(const char* op, const char* name, const TensorView& view,
                               int64_t dim) {
  if (view.dim != dim || !view.contiguous()) {
    value_error(op, ": ", name, " must be contiguous and have ", dim, " dimensions, got shape ",
                shape_of(view), view.contiguous() ? "" : " with other strides");
  }
}

inline void require_multiple(const char* op, int64_t rung, const char* name, int64_t size,
                             int tile) {
  if (size <= 0 || size % tile != 0) {
    value_error(op, " rung ", rung, ": ", name, " must be a positive multiple of the tile's ", tile,
                ", got ", size);
  }
  if (size > std::numeric_limits<int>::max() && std::string_view(name).size() == 1) {
    value_error(op, ": ", name, " must be below 2^31, got ", size);
  }
}

}  // namespace xgemm::ops::ladder
