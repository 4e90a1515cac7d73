// Memory on the device of a tensor, for as long as a call takes.
#pragma once

#include <cstdint>

#include "ops/checks.h"

namespace xgemm::ops {

// Freed when the op returns: torch's allocator hands the memory out again in the stream's order
// only, and inside a graph's capture it is the graph's own.
class Scratch {
 public:
  Scratch(int64_t bytes, const TensorView& like)
      : tensor_(new_owned(&bytes, 1, torch_code(DType::kI8), like)) {
    TORCH_ERROR_CODE_CHECK(torch_get_mutable_data_ptr(tensor_.get(), &data));
  }
  void* data = nullptr;

 private:
  OwnedTensor tensor_;
};

}  // namespace xgemm::ops
