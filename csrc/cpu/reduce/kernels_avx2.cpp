// The reductions' primitives for AVX2 with FMA and F16C: the sources of the generic build, under
// another target.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/reduce/kernel_table.h"

#define XGEMM_REDUCE_AVX2 1
#define XGEMM_REDUCE_AVX512 0

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace xgemm::cpu::reduce_detail {
namespace {

constexpr int kVectorBytes = 32;
#include "cpu/reduce/lanes.inl"
// After the lanes, which it is written in.
#include "cpu/reduce/lane_ops.inl"
// After the operations, which it applies.
#include "cpu/reduce/kernels.inl"

}  // namespace

const Kernels* avx2_kernels(Kind kind, DType dtype) { return find_kernels(kind, dtype); }

}  // namespace xgemm::cpu::reduce_detail

#pragma GCC pop_options
