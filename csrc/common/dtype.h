// Element types of the kernels, without torch.
#pragma once

#include <cstdint>

namespace xgemm {

enum class DType : int8_t { kF16, kBF16, kF32, kF64, kI8, kI16, kI32, kI64, kU8, kBool };

constexpr int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 1;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
      return 2;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF64:
    case DType::kI64:
      return 8;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 ||
         dtype == DType::kF64;
}

constexpr const char* name_of(DType dtype) {
  constexpr const char* kNames[] = {"float16", "bfloat16", "float32", "float64", "int8",
                                    "int16",   "int32",    "int64",   "uint8",   "bool"};
  return kNames[static_cast<int>(dtype)];
}

}  // namespace xgemm
