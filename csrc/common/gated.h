// Activations of a layer of experts: those of common/activation.h, and those that multiply.
#pragma once

#include <cstdint>

#include "common/activation.h"

namespace xgemm {

// The first five are Activation's. The last two take a product's first half of columns as the gate
// and the second half as what act(gate) multiplies.
enum class GatedActivation : int8_t {
  kNone,
  kRelu,
  kGelu,
  kGeluTanh,
  kSilu,
  kSiluAndMul,
  kGeluTanhAndMul,
};

constexpr bool is_gated(GatedActivation activation) {
  return activation >= GatedActivation::kSiluAndMul;
}

// What is applied to a column, or to the gate.
constexpr Activation activation_of(GatedActivation activation) {
  if (activation == GatedActivation::kSiluAndMul) return Activation::kSilu;
  if (activation == GatedActivation::kGeluTanhAndMul) return Activation::kGeluTanh;
  return static_cast<Activation>(activation);
}

}  // namespace xgemm
