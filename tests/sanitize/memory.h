// Operands of a call, each in memory of its own whose ends are watched.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "common/dtype.h"

namespace xgemm::sanitize {

using Rng = std::mt19937_64;
using Ints = std::vector<int64_t>;

// A number in [low, high].
inline int64_t draw(Rng& rng, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(rng() % static_cast<uint64_t>(high - low + 1));
}
template <typename T>
T pick(Rng& rng, std::initializer_list<T> values) {
  return values.begin()[rng() % values.size()];
}
inline bool one_in(Rng& rng, uint64_t n) { return rng() % n == 0; }

// Bytes that are all kFill at first. They are an allocation of exactly their size, which
// AddressSanitizer watches, or they end, or begin, at a page that nobody may touch: that stops what
// is not instrumented, such as masked loads, too.
class Memory {
 public:
  static constexpr uint8_t kFill = 0xa5;

  enum class Place { kHeap, kBeforeGuard, kAfterGuard };

  Memory(int64_t bytes, Place place);
  Memory(Rng& rng, int64_t bytes) : Memory(bytes, static_cast<Place>(draw(rng, 0, 2))) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_ = nullptr;
  void* pages_ = nullptr;  // with the guard page; null on the heap
  size_t mapped_ = 0;
};

double load(const void* at, DType dtype);
// Rounds once.
void store(void* at, DType dtype, double value);
// `value` as an element of `dtype` holds it.
double rounded(double value, DType dtype);

// A strided array. Its memory holds the elements, what lies between them, and nothing else.
class Array {
 public:
  // Strides: row-major or any other order of the dimensions, with or without gaps, reversed, or,
  // where `shared`, 0. `dense` leaves row-major alone.
  enum class Layout { kShared, kApart, kDense };
  Array(Rng& rng, DType dtype, Ints sizes, Layout layout);

  DType dtype() const { return dtype_; }
  int64_t size(size_t d) const { return sizes_[d]; }
  int64_t stride(size_t d) const { return strides_[d]; }
  void* data() const { return memory_.data() + first_ * element_size(dtype_); }
  void* at(const Ints& index) const;
  double get(const Ints& index) const { return load(at(index), dtype_); }
  void set(const Ints& index, double value) { store(at(index), dtype_, value); }
  // All elements: integers in [low, high], which every kernel adds exactly.
  void fill(Rng& rng, int64_t low, int64_t high);
  // The elements of a matrix, row-major.
  std::vector<double> values() const;
  // Whether the bytes between the elements are still those of the beginning.
  bool gaps_untouched() const;

 private:
  DType dtype_;
  Ints sizes_, strides_;
  int64_t first_ = 0;     // the element of the memory that is element 0 ... 0
  int64_t elements_ = 0;  // of the memory
  Memory memory_;

  Ints draw_strides(Rng& rng, Layout layout);
  int64_t span();
};

// The next index in row-major order; false after the last.
bool advance(Ints& index, const Ints& sizes);

// Ends the program where `right` is false.
void require(bool right, const char* what, double got = 0, double expected = 0);

}  // namespace xgemm::sanitize
