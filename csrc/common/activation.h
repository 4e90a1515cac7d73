// The activations an epilogue can apply, in fp32, before the one rounding to the output's type.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/math.h"

namespace xgemm {

enum class Activation : int8_t { kNone, kRelu, kGelu, kGeluTanh, kSilu };

// NaN passes through every activation, as in torch.
XGEMM_HOST_DEVICE inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;
    case Activation::kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case Activation::kSilu:
      return x / (1.0f + expf(-x));
  }
  return x;
}

}  // namespace xgemm
