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

// Bytes from the first element to the lowest and to the end of the highest one.
struct Extent {
  uintptr_t begin, end;
  bool intersects(const Extent& other) const { return begin < other.end && other.begin < end; }
};

int64_t item_size(const TensorView& view) {
  return static_cast<int64_t>(aoti_torch_dtype_element_size(view.dtype_code));
}

Extent extent_of(const TensorView& view) {
  int64_t last = 0;
  for (int64_t d = 0; d < view.dim; ++d) last += (view.sizes[d] - 1) * view.strides[d];
  const auto begin = reinterpret_cast<uintptr_t>(view.data());
  return {begin, begin + static_cast<uintptr_t>((last + 1) * item_size(view))};
}

// The addresses of a tensor modulo `period` bytes, as an arc: dimensions whose stride is a multiple
// of the period fall onto one place, the others span its length.
struct Arc {
  int64_t begin, length;
};

Arc arc_of(const TensorView& view, int64_t period) {
  const int64_t item = item_size(view);
  int64_t length = item;
  for (int64_t d = 0; d < view.dim; ++d) {
    const int64_t bytes = view.strides[d] * item;
    if (bytes % period != 0) length += (view.sizes[d] - 1) * bytes;
  }
  const auto address = reinterpret_cast<uintptr_t>(view.data());
  return {static_cast<int64_t>(address % static_cast<uintptr_t>(period)), length};
}

bool arcs_apart(const Arc& a, const Arc& b, int64_t period) {
  const int64_t from_a_to_b = (b.begin - a.begin + period) % period;
  return a.length <= from_a_to_b && b.length <= period - from_a_to_b;
}

// True where some stride of `periods`, taken as a period, shows that no address is shared.
bool interleaved(const TensorView& periods, const TensorView& a, const TensorView& b) {
  for (int64_t d = 0; d < periods.dim; ++d) {
    const int64_t period = periods.strides[d] * item_size(periods);
    if (period > 0 && arcs_apart(arc_of(a, period), arc_of(b, period), period)) return true;
  }
  return false;
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
                                                              const TensorView& like) {
  const std::string reason = torch_error(like.device_type == aoti_torch_device_type_cuda());
  throw std::runtime_error(concat("xgemm: no ", dtype_name(dtype_code), " tensor of shape ",
                                  shape_of(sizes, dim), " on ", device_of(like), ": ", reason));
}

}  // namespace

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

void require_no_self_overlap(const char* op, const char* name, const TensorView& view) {
  if (view.contiguous()) return;
  std::vector<int64_t> order;
  for (int64_t d = 0; d < view.dim; ++d) {
    if (view.sizes[d] == 0) return;
    if (view.sizes[d] > 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return view.strides[a] < view.strides[b]; });
  int64_t reach = 0;  // of the dimensions of smaller strides, in elements
  for (int64_t d : order) {
    if (view.strides[d] <= reach) {
      const std::string strides = shape_of(view.strides, view.dim);
      value_error(op, ": ", name, " must not overlap itself, got shape ", shape_of(view),
                  " with strides ", strides);
    }
    reach += (view.sizes[d] - 1) * view.strides[d];
  }
}

void require_no_overlap(const char* op, const char* name, const TensorView& written,
                        const char* other_name, const TensorView& other) {
  if (written.numel() == 0 || other.numel() == 0 || !written.same_device(other)) return;
  if (!extent_of(written).intersects(extent_of(other))) return;
  if (interleaved(written, written, other) || interleaved(other, written, other)) return;
  value_error(op, ": ", name, " must not overlap ", other_name,
              ", got two views of the same memory, of shapes ", shape_of(written), " and ",
              shape_of(other));
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
  int64_t stride = 1;
  for (int64_t d = dim - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(dim, sizes, strides, dtype_code, like.device_type, like.device_index,
                               &handle) != TORCH_SUCCESS) {
    allocation_failed(sizes, dim, dtype_code, like);
  }
  return OwnedTensor(handle);
}

}  // namespace xgemm::ops
