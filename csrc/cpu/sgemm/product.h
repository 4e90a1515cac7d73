// One matrix product inside the family, and what the kernels of the family hand each other.
#pragma once

#include "cpu/isa/caches.h"
#include "cpu/sgemm/api.h"

namespace xgemm::cpu::dense {

// Element (i, j) is at data + i * row_stride + j * col_stride, in elements of `dtype`.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0, col_stride = 0;
};
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0, col_stride = 0;
};

// GemmProblem without its batch; the bias is a matrix of which one stride is 0, so that a problem
// can be transposed as a whole.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  ConstMatrix a;  // [m, k]
  ConstMatrix b;  // [k, n]
  const PanelSource* b_source = nullptr;
  ConstMatrix c;     // [m, n]
  Matrix d;          // [m, n]
  ConstMatrix bias;  // [m, n]; data is null where there is none
  float alpha = 1.0f, beta = 0.0f;
  Activation activation = Activation::kNone;

  bool has_epilogue() const {
    return alpha != 1.0f || beta != 0.0f || bias.data != nullptr || activation != Activation::kNone;
  }
};

inline ConstMatrix transpose(const ConstMatrix& x) {
  return {x.data, x.dtype, x.col_stride, x.row_stride};
}

// The same product seen as D^T = B^T A^T; only where there is no b_source.
inline Product transpose(const Product& p) {
  Product t = p;
  t.m = p.n;
  t.n = p.m;
  t.a = transpose(p.b);
  t.b = transpose(p.a);
  t.c = transpose(p.c);
  t.d = {p.d.data, p.d.dtype, p.d.col_stride, p.d.row_stride};
  t.bias = transpose(p.bias);
  return t;
}

// Half of an L3 cache, of which a core has no more than 32 MiB whatever the machine tells of all.
inline int64_t half_l3() {
  constexpr int64_t kMost = int64_t{32} << 20;
  return (cache_sizes().l3 < kMost ? cache_sizes().l3 : kMost) / 2;
}

// Whether B is too large to be in a cache still.
inline bool comes_from_memory(const Product& p) {
  return p.n > half_l3() / element_size(p.b.dtype) / p.k;
}

// Whether B is larger than a core's L2 cache by a third: most of it comes from farther away.
inline bool exceeds_l2(const Product& p) {
  return p.n > cache_sizes().l2 / 3 * 4 / element_size(p.b.dtype) / p.k;
}

inline const void* at(const ConstMatrix& x, int64_t i, int64_t j) {
  return static_cast<const char*>(x.data) +
         (i * x.row_stride + j * x.col_stride) * element_size(x.dtype);
}
inline void* at(const Matrix& x, int64_t i, int64_t j) {
  return static_cast<char*>(x.data) + (i * x.row_stride + j * x.col_stride) * element_size(x.dtype);
}

// These rows and columns of the product.
inline Product part_of(const Product& p, const Range& rows, const Range& cols) {
  Product part = p;
  part.m = rows.end - rows.begin;
  part.n = cols.end - cols.begin;
  part.a.data = at(p.a, rows.begin, 0);
  part.b.data = at(p.b, 0, cols.begin);
  part.d.data = at(p.d, rows.begin, cols.begin);
  if (p.c.data != nullptr) part.c.data = at(p.c, rows.begin, cols.begin);
  if (p.bias.data != nullptr) part.bias.data = at(p.bias, rows.begin, cols.begin);
  return part;
}

}  // namespace xgemm::cpu::dense
