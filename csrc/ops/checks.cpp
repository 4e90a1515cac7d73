#include "ops/checks.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace xgemm::ops {
namespace {

constexpr int kDTypes = 10;  // of DType

struct NamedCode {
  int32_t code;
  const char* name;
};

// torch's codes by DType; read once, as each is a call.
const std::array<int32_t, kDTypes>& codes() {
  static const std::array<int32_t, kDTypes> table = {
      aoti_torch_dtype_float16(), aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float32(),
      aoti_torch_dtype_float64(), aoti_torch_dtype_int8(),     aoti_torch_dtype_int16(),
      aoti_torch_dtype_int32(),   aoti_torch_dtype_int64(),    aoti_torch_dtype_uint8(),
      aoti_torch_dtype_bool()};
  return table;
}

// Why torch's last call failed. From 2.13 on it can be asked (by name: the library is built for
// older ones, too), before that it writes it to stderr.
std::string torch_error(bool on_cuda) {
  using What = const char* (*)();
  void* what = dlsym(RTLD_DEFAULT, "torch_exception_get_what_without_backtrace");
  if (what != nullptr) return reinterpret_cast<What>(what)();
  return concat("most likely ", on_cuda ? "CUDA" : "CPU", " out of memory. It is on stderr");
}

// A RuntimeError: programs that then try again with less look for "CUDA out of memory." in it.
[[noreturn, gnu::cold, gnu::noinline]] void allocation_failed(const int64_t* sizes, int64_t dim,
                                                              int32_t dtype_code,
                                                              const TensorView& like,
                                                              const std::string& reason) {
  throw std::runtime_error(concat("xgemm: no ", dtype_name(dtype_code), " tensor of shape ",
                                  shape_of(sizes, dim), " on ", device_of(like), ": ", reason));
}

}  // namespace

void TensorView::require_allocated(const char* op, const char* name) const {
  int64_t held = 0, first = 0, last = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(handle, &held));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_offset(handle, &first));
  for (int64_t d = 0; d < dim; ++d) last += (sizes[d] - 1) * strides[d];
  const auto item = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype_code));
  const int64_t needed = (first + last + 1) * item;
  // A storage without memory is a null pointer, to which torch adds the offset.
  const bool null = reinterpret_cast<uintptr_t>(data()) == static_cast<uintptr_t>(first * item);
  if (held >= needed && !null) return;
  value_error(op, ": ", name,
              " has elements, but its data is not allocated yet, or no longer: shape ",
              shape_of(*this), " needs a storage of ", needed, " bytes, got ", null ? 0 : held);
}

int32_t torch_code(DType dtype) { return codes()[static_cast<size_t>(dtype)]; }

std::optional<DType> find_dtype(int32_t code) {
  const auto& table = codes();
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i] == code) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::string dtype_name(int32_t code) {
  if (const std::optional<DType> dtype = find_dtype(code)) return name_of(*dtype);
  const NamedCode others[] = {{aoti_torch_dtype_complex32(), "complex32"},
                              {aoti_torch_dtype_complex64(), "complex64"},
                              {aoti_torch_dtype_complex128(), "complex128"},
                              {aoti_torch_dtype_uint16(), "uint16"},
                              {aoti_torch_dtype_uint32(), "uint32"},
                              {aoti_torch_dtype_uint64(), "uint64"},
                              {aoti_torch_dtype_float8_e5m2(), "float8_e5m2"},
                              {aoti_torch_dtype_float8_e4m3fn(), "float8_e4m3fn"},
                              {aoti_torch_dtype_float8_e5m2fnuz(), "float8_e5m2fnuz"},
                              {aoti_torch_dtype_float8_e4m3fnuz(), "float8_e4m3fnuz"}};
  for (const NamedCode& other : others) {
    if (other.code == code) return other.name;
  }
  return concat("a dtype of code ", code);
}

std::string shape_of(const int64_t* sizes, int64_t dim) {
  std::string text = "[";
  for (int64_t d = 0; d < dim; ++d) text += (d == 0 ? "" : ", ") + std::to_string(sizes[d]);
  return text + "]";
}

std::string device_of(const TensorView& view) {
  if (view.device_type == aoti_torch_device_type_cpu()) return "cpu";
  const bool cuda = view.device_type == aoti_torch_device_type_cuda();
  return concat(cuda ? "cuda" : "another device", ":", view.device_index);
}

DType require_dtype(const char* op, const char* name, const TensorView& view,
                    std::initializer_list<DType> allowed) {
  const std::optional<DType> dtype = find_dtype(view.dtype_code);
  if (dtype && std::find(allowed.begin(), allowed.end(), *dtype) != allowed.end()) return *dtype;
  std::string names;
  for (const DType* candidate = allowed.begin(); candidate != allowed.end(); ++candidate) {
    if (candidate != allowed.begin())
      names += std::next(candidate) == allowed.end() ? " or " : ", ";
    names += name_of(*candidate);
  }
  value_error(op, ": ", name, " must be ", names, ", got ", dtype_of(view));
}

void require_same_dtype(const char* op, const char* name, const TensorView& view,
                        const char* other_name, const TensorView& other) {
  if (view.dtype_code == other.dtype_code) return;
  value_error(op, ": ", name, " must have the dtype of ", other_name, ", ", dtype_of(other),
              ", got ", dtype_of(view));
}

void require_same_device(const char* op, const char* name, const TensorView& view,
                         const char* other_name, const TensorView& other) {
  if (view.same_device(other)) return;
  value_error(op, ": ", name, " must be on the device of ", other_name, ", ", device_of(other),
              ", got ", device_of(view));
}

void require_cpu(const char* op, const char* name, const TensorView& view) {
  if (view.device_type == aoti_torch_device_type_cpu()) return;
  value_error(op, ": ", name, " must be on the CPU, as the other tensors are, got ",
              device_of(view));
}

void require_shape(const char* op, const char* name, const TensorView& view, const int64_t* shape,
                   int64_t dim) {
  if (view.dim == dim && std::equal(shape, shape + dim, view.sizes)) return;
  value_error(op, ": ", name, " must have the shape ", shape_of(shape, dim), ", got ",
              shape_of(view));
}

int64_t wrap_dim(const char* op, int64_t dim, int64_t ndim) {
  const int64_t bound = ndim == 0 ? 1 : ndim;
  if (dim < -bound || dim >= bound) {
    index_error(op, ": dim must be in [", -bound, ", ", bound - 1, "] for a ", ndim,
                "-D tensor, got ", dim);
  }
  return dim < 0 ? dim + bound : dim;
}

OwnedTensor new_owned(const int64_t* sizes, int64_t dim, int32_t dtype_code,
                      const TensorView& like) {
  constexpr int64_t kInline = 8;
  int64_t few[kInline];
  std::vector<int64_t> many(dim > kInline ? static_cast<size_t>(dim) : 0);
  int64_t* strides = dim > kInline ? many.data() : few;
  int64_t stride = 1, bytes = 0;
  bool fits = true;
  for (int64_t d = dim - 1; d >= 0; --d) {
    strides[d] = stride;
    fits = !__builtin_mul_overflow(stride, std::max<int64_t>(sizes[d], 1), &stride) && fits;
  }
  const auto item = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype_code));
  if (!fits || __builtin_mul_overflow(stride, item, &bytes)) {
    allocation_failed(sizes, dim, dtype_code, like,
                      "its size in bytes is beyond 63 bits of memory");
  }
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(dim, sizes, strides, dtype_code, like.device_type, like.device_index,
                               &handle) != TORCH_SUCCESS) {
    const bool on_cuda = like.device_type == aoti_torch_device_type_cuda();
    allocation_failed(sizes, dim, dtype_code, like, torch_error(on_cuda));
  }
  return OwnedTensor(handle);
}

}  // namespace xgemm::ops
