// The end of a product, one element at a time: what vector code must equal.
#pragma once

#include "cpu/isa/convert.h"
#include "cpu/sgemm/product.h"

namespace xgemm::cpu::dense {

// D[i, j] from its sum; C is read only where beta is not 0.
inline void finish_element(const Product& p, int64_t i, int64_t j, float sum) {
  float value = p.alpha * sum;
  if (p.beta != 0.0f) value += p.beta * load_float(at(p.c, i, j), p.c.dtype);
  if (p.bias.data != nullptr) value += load_float(at(p.bias, i, j), p.bias.dtype);
  store_float(at(p.d, i, j), p.d.dtype, activate(p.activation, value));
}

// As Finish.
inline void finish_elements(const Product& p, int64_t i0, int64_t j0, int64_t rows, int64_t cols,
                            const float* sums, int64_t ld) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) finish_element(p, i0 + i, j0 + j, sums[i * ld + j]);
  }
}

}  // namespace xgemm::cpu::dense
