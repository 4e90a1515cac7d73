// The primitives a reduction is put together from, one table for each (kind, element type, ISA).
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace xgemm::cpu::reduce_detail {

// What is accumulated: the mean is a sum, and the norm is one of several by its order.
enum class Kind : int8_t {
  kSum,
  kProd,
  kAmax,
  kAmin,
  kNormZero,    // p = 0: how many are not zero
  kNormOne,     // p = 1
  kNormTwo,     // p = 2
  kNormMaxAbs,  // p = inf
  kNormMinAbs,  // p = -inf
  kNormInt,     // any other whole p up to kMaxIntPower in size: products, no pow
  kNormAny,
  kArgmax,
  kArgmin,
};

constexpr int kMaxIntPower = 64;

// Outputs that are accumulated together; a tile's state is an array of at most this many.
constexpr int kMaxTile = 1024;

struct Params {
  double p = 2.0;        // order of the norm
  double divisor = 1.0;  // of the mean: the result of a sum is divided by it
  int64_t in_bytes = 0;  // of the whole input: whether caches hold it
};

// `acc` is an array of accumulators, acc_bytes each, one for an output. `base` is the position of
// the block's first element in the order of the reduced dimensions (for argmax and argmin).
struct Kernels {
  int acc_bytes;
  void (*init)(void* acc, int64_t count);
  // Every one of `rows` runs of n contiguous elements is folded into its own accumulator.
  void (*rows)(const void* x, int64_t row_stride, int64_t rows, int64_t n, void* acc, int64_t base,
               const Params& params);
  // n rows of `cols` contiguous elements are folded into one accumulator for each column.
  void (*cols)(const void* x, int64_t row_stride, int64_t n, int64_t cols, void* acc, int64_t base,
               const Params& params);
  void (*combine)(void* acc, const void* other, int64_t count);
  void (*store)(const void* acc, int64_t count, void* out, int64_t out_stride,
                const Params& params);
};

// Null for a combination that does not exist (a norm of integers).
const Kernels* generic_kernels(Kind kind, DType dtype);
const Kernels* avx2_kernels(Kind kind, DType dtype);
const Kernels* avx512_kernels(Kind kind, DType dtype);

}  // namespace xgemm::cpu::reduce_detail
