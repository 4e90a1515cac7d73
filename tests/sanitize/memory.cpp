#include "sanitize/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/math.h"
#include "cpu/isa/convert.h"

namespace xgemm::sanitize {
namespace {

constexpr size_t kPage = 4096;

void check(bool done) {
  if (!done) {
    std::perror("mmap");
    std::exit(2);
  }
}

template <typename T>
double get(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<double>(value);
}
template <typename T>
void put(void* at, double number) {
  const T value = static_cast<T>(number);
  std::memcpy(at, &value, sizeof value);
}

}  // namespace

Memory::Memory(int64_t count, Place place) {
  const auto bytes = static_cast<size_t>(count);
  if (place == Place::kHeap) {
    data_ = static_cast<uint8_t*>(std::malloc(bytes));
  } else {
    const size_t inner = round_up(bytes, kPage);
    mapped_ = inner + kPage;
    pages_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(pages_ != MAP_FAILED);
    auto* first = static_cast<uint8_t*>(pages_);
    uint8_t* guard = place == Place::kBeforeGuard ? first + inner : first;
    check(mprotect(guard, kPage, PROT_NONE) == 0);
    data_ = place == Place::kBeforeGuard ? guard - bytes : guard + kPage;
  }
  if (bytes > 0) std::memset(data_, kFill, bytes);
}

Memory::~Memory() {
  if (pages_ == nullptr) {
    std::free(data_);
  } else {
    munmap(pages_, mapped_);
  }
}

double load(const void* at, DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
      return cpu::load_float(at, dtype);
    case DType::kF64:
      return get<double>(at);
    case DType::kI8:
      return get<int8_t>(at);
    case DType::kI16:
      return get<int16_t>(at);
    case DType::kI32:
      return get<int32_t>(at);
    case DType::kI64:
      return get<int64_t>(at);
    default:
      return get<uint8_t>(at);
  }
}

void store(void* at, DType dtype, double value) {
  switch (dtype) {
    case DType::kF16:
      return put<uint16_t>(at, cpu::float_to_half(static_cast<float>(value)));
    case DType::kBF16:
      return put<uint16_t>(at, cpu::float_to_bf16(static_cast<float>(value)));
    case DType::kF32:
      return put<float>(at, value);
    case DType::kF64:
      return put<double>(at, value);
    case DType::kI8:
      return put<int8_t>(at, value);
    case DType::kI16:
      return put<int16_t>(at, value);
    case DType::kI32:
      return put<int32_t>(at, value);
    case DType::kI64:
      return put<int64_t>(at, value);
    default:
      return put<uint8_t>(at, value);
  }
}

double rounded(double value, DType dtype) {
  uint64_t bits = 0;
  store(&bits, dtype, value);
  return load(&bits, dtype);
}

Array::Array(Rng& rng, DType dtype, Ints sizes, Layout layout)
    : dtype_(dtype),
      sizes_(std::move(sizes)),
      strides_(draw_strides(rng, layout)),
      elements_(span()),
      memory_(rng, elements_ * element_size(dtype)) {}

Ints Array::draw_strides(Rng& rng, Layout layout) {
  const size_t dims = sizes_.size();
  Ints strides(dims), order(dims);
  std::iota(order.rbegin(), order.rend(), 0);  // innermost first
  const bool free = layout != Layout::kDense;
  if (free && one_in(rng, 2)) std::shuffle(order.begin(), order.end(), rng);
  int64_t stride = free && one_in(rng, 4) ? draw(rng, 2, 3) : 1;
  for (const int64_t d : order) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes_[d], 1);
    if (free && one_in(rng, 3)) stride += draw(rng, 1, 9);
    if (free && one_in(rng, 12)) strides[d] = -strides[d];
    if (layout == Layout::kShared && one_in(rng, 12)) strides[d] = 0;
  }
  return strides;
}

int64_t Array::span() {
  int64_t low = 0, high = 0;
  for (size_t d = 0; d < sizes_.size(); ++d) {
    if (sizes_[d] == 0) return 0;
    const int64_t far = (sizes_[d] - 1) * strides_[d];
    (far < 0 ? low : high) += far;
  }
  first_ = -low;
  return high - low + 1;
}

void* Array::at(const Ints& index) const {
  int64_t place = first_;
  for (size_t d = 0; d < index.size(); ++d) place += index[d] * strides_[d];
  return memory_.data() + place * element_size(dtype_);
}

void Array::fill(Rng& rng, int64_t low, int64_t high) {
  if (elements_ == 0) return;
  Ints index(sizes_.size(), 0);
  do {
    set(index, static_cast<double>(draw(rng, low, high)));
  } while (advance(index, sizes_));
}

std::vector<double> Array::values() const {
  std::vector<double> all;
  if (elements_ == 0) return all;
  Ints index(sizes_.size(), 0);
  do {
    all.push_back(get(index));
  } while (advance(index, sizes_));
  return all;
}

bool Array::gaps_untouched() const {
  if (elements_ == 0) return true;
  const int64_t size = element_size(dtype_);
  std::vector<bool> taken(static_cast<size_t>(elements_));
  Ints index(sizes_.size(), 0);
  do {
    taken[static_cast<size_t>((static_cast<uint8_t*>(at(index)) - memory_.data()) / size)] = true;
  } while (advance(index, sizes_));
  for (int64_t i = 0; i < elements_ * size; ++i) {
    if (!taken[static_cast<size_t>(i / size)] && memory_.data()[i] != Memory::kFill) return false;
  }
  return true;
}

bool advance(Ints& index, const Ints& sizes) {
  for (size_t d = index.size(); d-- > 0;) {
    if (++index[d] < sizes[d]) return true;
    index[d] = 0;
  }
  return false;
}

void require(bool right, const char* what, double got, double expected) {
  if (right) return;
  std::fprintf(stderr, "%s: got %.9g, expected %.9g\n", what, got, expected);
  std::exit(1);
}

}  // namespace xgemm::sanitize
