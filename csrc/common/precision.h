// How products of float32 operands are computed.
#pragma once

#include <cstdint>

namespace xgemm {

enum class Precision : int8_t {
  kIeee,    // fp32 products and sums
  kTf32x3,  // about as exact, by three products of TF32 parts on tensor cores
  kTf32,    // operands rounded to TF32
};

}  // namespace xgemm
