// The reductions' primitives for any x86-64.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/reduce/kernel_table.h"

#define XGEMM_REDUCE_AVX2 0
#define XGEMM_REDUCE_AVX512 0

namespace xgemm::cpu::reduce_detail {
namespace {

constexpr int kVectorBytes = 16;
#include "cpu/reduce/lanes.inl"
// After the lanes, which it is written in.
#include "cpu/reduce/lane_ops.inl"
// After the operations, which it applies.
#include "cpu/reduce/kernels.inl"

}  // namespace

const Kernels* generic_kernels(Kind kind, DType dtype) { return find_kernels(kind, dtype); }

}  // namespace xgemm::cpu::reduce_detail
