// Packing in plain C++, whatever the strides: what the vector code must equal.
#pragma once

#include "cpu/isa/convert.h"
#include "cpu/sgemm/product.h"

namespace xgemm::cpu::dense {

// As PackPanels.
inline void pack_any(const ConstMatrix& x, int64_t extent, int64_t k, int64_t width, float* out) {
  for (int64_t i0 = 0; i0 < extent; i0 += width) {
    for (int64_t p = 0; p < k; ++p) {
      for (int64_t i = i0; i < i0 + width; ++i) {
        *out++ = i < extent ? load_float(at(x, i, p), x.dtype) : 0.0f;
      }
    }
  }
}

}  // namespace xgemm::cpu::dense
