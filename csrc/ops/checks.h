// What every op asks of its tensors, before it computes anything.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "ops/errors.h"
#include "ops/torch_parallel.h"

namespace xgemm::ops {

using torch::stable::Tensor;

// torch's code of a DType, and back (nullopt: a type that no kernel here knows, as complex64).
int32_t torch_code(DType dtype);
std::optional<DType> find_dtype(int32_t code);
std::string dtype_name(int32_t code);

// A tensor as the dispatcher hands it over, for the ops that are called often: a Tensor counts its
// references, which costs an allocation for each argument.
struct DeleteTensor {
  void operator()(AtenTensorHandle handle) const { aoti_torch_delete_tensor_object(handle); }
};
using OwnedTensor = std::unique_ptr<AtenTensorOpaque, DeleteTensor>;
// What such an op returns: the reference itself, which the dispatcher takes over.
struct ReturnedTensor {
  explicit ReturnedTensor(OwnedTensor tensor) : handle(tensor.release()) {}
  AtenTensorHandle handle;
};

// A tensor's description, read once through the C shim; borrows from the tensor.
struct TensorView {
  // An argument of `op`, refused by name where its storage does not hold its elements: a storage
  // can be freed or shrunk under a tensor (FSDP does that), and torch itself would read on.
  TensorView(const char* op, const char* name, const Tensor& tensor)
      : TensorView(op, name, tensor.get()) {}
  TensorView(const char* op, const char* name, const OwnedTensor& tensor)
      : TensorView(op, name, tensor.get()) {}
  // A tensor of the op's own.
  explicit TensorView(const Tensor& tensor) : TensorView(tensor.get()) {}
  explicit TensorView(const OwnedTensor& tensor) : TensorView(tensor.get()) {}
  explicit TensorView(AtenTensorHandle handle) : handle(handle) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dim));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &strides));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &dtype_code));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device_type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device_index));
  }

  AtenTensorHandle handle;
  int64_t dim = 0;
  int64_t* sizes = nullptr;    // [dim]
  int64_t* strides = nullptr;  // [dim], elements
  int32_t dtype_code = 0;
  int32_t device_type = 0, device_index = 0;

  int64_t size(int64_t d) const { return sizes[d < 0 ? d + dim : d]; }
  int64_t stride(int64_t d) const { return strides[d < 0 ? d + dim : d]; }
  int64_t numel() const {
    int64_t count = 1;
    for (int64_t d = 0; d < dim; ++d) count *= sizes[d];
    return count;
  }
  bool contiguous() const {
    int64_t expected = 1;
    for (int64_t d = dim - 1; d >= 0; --d) {
      if (sizes[d] != 1 && strides[d] != expected) return numel() == 0;
      // Only an empty tensor's sizes may have a product beyond int64.
      if (__builtin_mul_overflow(expected, sizes[d], &expected)) return numel() == 0;
    }
    return true;
  }
  bool same_device(const TensorView& other) const {
    return device_type == other.device_type && device_index == other.device_index;
  }
  const void* data() const {
    const void* pointer = nullptr;
    TORCH_ERROR_CODE_CHECK(torch_get_const_data_ptr(handle, &pointer));
    return pointer;
  }
  void* mutable_data() const {
    void* pointer = nullptr;
    TORCH_ERROR_CODE_CHECK(torch_get_mutable_data_ptr(handle, &pointer));
    return pointer;
  }

 private:
  TensorView(const char* op, const char* name, AtenTensorHandle handle) : TensorView(handle) {
    if (numel() != 0) require_allocated(op, name);
  }
  void require_allocated(const char* op, const char* name) const;
};

// "[2, 3]", "float32", "cuda:0"
std::string shape_of(const int64_t* sizes, int64_t dim);
inline std::string shape_of(const TensorView& view) { return shape_of(view.sizes, view.dim); }
inline std::string dtype_of(const TensorView& view) { return dtype_name(view.dtype_code); }
std::string device_of(const TensorView& view);

// `view`'s dtype if it is one of `allowed`, else a ValueError that names them.
DType require_dtype(const char* op, const char* name, const TensorView& view,
                    std::initializer_list<DType> allowed);
void require_same_dtype(const char* op, const char* name, const TensorView& view,
                        const char* other_name, const TensorView& other);
void require_same_device(const char* op, const char* name, const TensorView& view,
                         const char* other_name, const TensorView& other);
void require_cpu(const char* op, const char* name, const TensorView& view);
void require_shape(const char* op, const char* name, const TensorView& view, const int64_t* shape,
                   int64_t dim);
inline void require_shape(const char* op, const char* name, const TensorView& view,
                          std::initializer_list<int64_t> shape) {
  require_shape(op, name, view, shape.begin(), static_cast<int64_t>(shape.size()));
}

// A destination that an op writes: no two of its elements share an address, and it shares none
// with an input. Views that interleave in one buffer without a common element are taken.
void require_no_self_overlap(const char* op, const char* name, const TensorView& view);
void require_no_overlap(const char* op, const char* name, const TensorView& written,
                        const char* other_name, const TensorView& other);

// The dimension counted from the front, or an IndexError. A 0-D tensor takes -1 and 0.
int64_t wrap_dim(const char* op, int64_t dim, int64_t ndim);

// A contiguous tensor on `like`'s device, its contents not set.
OwnedTensor new_owned(const int64_t* sizes, int64_t dim, int32_t dtype_code,
                      const TensorView& like);
inline Tensor new_output(const int64_t* sizes, int64_t dim, int32_t dtype_code,
                         const TensorView& like) {
  return Tensor(new_owned(sizes, dim, dtype_code, like).release());
}
inline Tensor new_output(std::initializer_list<int64_t> sizes, int32_t dtype_code,
                         const TensorView& like) {
  return new_output(sizes.begin(), static_cast<int64_t>(sizes.size()), dtype_code, like);
}

}  // namespace xgemm::ops

HIDDEN_NAMESPACE_BEGIN(torch, stable, detail)

template <>
struct ToImpl<xgemm::ops::OwnedTensor> {
  static xgemm::ops::OwnedTensor call(StableIValue value, uint64_t, bool) {
    return xgemm::ops::OwnedTensor(to<AtenTensorHandle>(value));
  }
};

HIDDEN_NAMESPACE_END(torch, stable, detail)
