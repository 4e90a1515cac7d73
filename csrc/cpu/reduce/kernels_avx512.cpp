// The reductions' primitives for AVX-512: the sources of the generic build, under another target.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/reduce/kernel_table.h"

#define XGEMM_REDUCE_AVX2 0
#define XGEMM_REDUCE_AVX512 1

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")

namespace xgemm::cpu::reduce_detail {
namespace {

constexpr int kVectorBytes = 64;
#include "cpu/reduce/lanes.inl"
// After the lanes, which it is written in.
#include "cpu/reduce/lane_ops.inl"
// After the operations, which it applies.
#include "cpu/reduce/kernels.inl"

}  // namespace

const Kernels* avx512_kernels(Kind kind, DType dtype) { return find_kernels(kind, dtype); }

}  // namespace xgemm::cpu::reduce_detail

#pragma GCC pop_options
