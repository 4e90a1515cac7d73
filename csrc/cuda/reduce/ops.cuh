// What each kind of reduction does. A thread folds the elements of one load into a lane; lanes meet
// within the thread and, in short rows, within the warp; widened, they are combined across the
// block, the cluster and the pieces; `finish` makes the result.
//
// finish_lane(lane) makes it of a lane that met all others: many results should not go by fp64.
// fold(x) makes a lane of numbers. Only kArg looks at where they stand, so it has take(lane, x,
// first, step) instead: x[i] stands at position first + i * step, behind all that `lane` has.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cuda/ptx/canonical_pair.h"
#include "cuda/ptx/max_nan.h"
#include "cuda/reduce/element.cuh"
#include "cuda/reduce/params.h"

namespace xgemm::cuda::reduce {

// Pairs first: a tree of short chains, whose rounding errors hardly grow with N.
template <int N, typename C, typename Meet>
__device__ inline C fold_tree(const C* x, const Meet& meet) {
  if constexpr (N == 1) {
    return x[0];
  } else {
    return meet(fold_tree<N - N / 2>(x, meet), fold_tree<N / 2>(x + N - N / 2, meet));
  }
}

template <typename T, typename LaneType>
struct Additive {
  using Element = T;
  using Lane = LaneType;
  using Acc = std::conditional_t<kIsFloat<T>, double, uint64_t>;  // integers wrap, as in torch
  using Out = std::conditional_t<kIsFloat<T>, T, int64_t>;
  static constexpr bool kTransforms = false;
  __device__ static Lane identity() { return 0; }
  __device__ static Lane meet(Lane a, Lane b) { return a + b; }
  __device__ static Acc widen(Lane lane, int64_t) { return lane; }
  __device__ static Acc combine(Acc a, Acc b) { return a + b; }
};

template <typename T>
using SumLane =
    std::conditional_t<kIsFloat<T>, std::conditional_t<sizeof(T) == 8, double, float>, uint64_t>;

template <typename T>
struct Sum : Additive<T, SumLane<T>> {
  using typename Additive<T, SumLane<T>>::Lane;
  using typename Additive<T, SumLane<T>>::Acc;
  using typename Additive<T, SumLane<T>>::Out;
  template <int N>
  __device__ static Lane fold(const Number<T> (&x)[N], const Params&) {
    // What a load holds of the short integers sums up in 32 bits.
    using Short = std::conditional_t<kIsFloat<T> || sizeof(T) >= 4, Lane, int32_t>;
    Short wide[N];
#pragma unroll
    for (int i = 0; i < N; ++i) wide[i] = x[i];
    const Short sum = fold_tree<N>(wide, [](Short a, Short b) { return a + b; });
    if constexpr (kIsFloat<T>) {
      return sum;
    } else {
      return static_cast<int64_t>(sum);
    }
  }
  __device__ static Out finish(Acc acc, const Params& p) {
    if constexpr (kIsFloat<T>) {
      return round_to<Out>(p.divisor == 1 ? acc : acc / p.divisor);
    } else {
      return acc;
    }
  }
  __device__ static Out finish_lane(Lane lane, const Params& p) {
    if constexpr (kIsFloat<T>) {
      return round_to<Out>(p.divisor == 1 ? lane : lane / static_cast<Lane>(p.divisor));
    } else {
      return lane;
    }
  }
};

// Norms of order 2, and of 1 and 0. Squares of fp16 are in fp32's range. Those of bf16 and fp32 may
// not be: where the sum of a load's squares is so large or small that some may have overflowed or
// vanished, it is made in double.
template <typename T>
struct Squares : Additive<T, std::conditional_t<std::is_same_v<T, __half>, float, double>> {
  using Base = Additive<T, std::conditional_t<std::is_same_v<T, __half>, float, double>>;
  using typename Base::Acc;
  using typename Base::Lane;
  template <typename C, int N>
  __device__ static C sum_of_squares(const Number<T> (&x)[N]) {
    C squares[N];
#pragma unroll
    for (int i = 0; i < N; ++i) squares[i] = C(x[i]) * C(x[i]);
    return fold_tree<N>(squares, [](C a, C b) { return a + b; });
  }
  template <int N>
  __device__ static Lane fold(const Number<T> (&x)[N], const Params& p) {
    if (p.magnitude != Magnitude::kSquare) [[unlikely]] {
      Number<T> magnitudes[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Number<T> one = x[i] != 0 ? 1 : 0;
        magnitudes[i] = p.magnitude == Magnitude::kNonzero ? one : fabs(x[i]);
      }
      return fold_tree<N>(magnitudes, [](Number<T> a, Number<T> b) { return a + b; });
    }
    const Number<T> sum = sum_of_squares<Number<T>>(x);
    if constexpr (std::is_same_v<Number<T>, float> && !std::is_same_v<T, __half>) {
      if (!(sum > 1e-25f && sum < 1e37f)) {  // rare: one chain, for the sake of registers
        double wide = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) wide += static_cast<double>(x[i]) * x[i];
        return wide;
      }
    }
    return sum;
  }
  __device__ static T finish(Acc acc, const Params& p) { return finish_lane(acc, p); }
  template <typename C>  // of an Acc or a Lane
  __device__ static T finish_lane(C sum, const Params& p) {
    return round_to<T>(p.magnitude == Magnitude::kSquare ? sqrt(sum) : sum);
  }
};

// |x|^p; small whole orders by multiplying.
template <typename C>
__device__ __noinline__ double power_of(C x, double p) {
  const double base = fabs(static_cast<double>(x));
  if (fabs(p) > 64 || p != trunc(p)) return pow(base, p);
  double factor = base, power = 1;
  for (int left = static_cast<int>(fabs(p));; factor *= factor) {
    if (left & 1) power *= factor;
    left >>= 1;
    if (left == 0) break;
  }
  return p < 0 ? 1 / power : power;
}
__device__ __noinline__ inline float power_in_fp32(float x, float p) { return powf(fabsf(x), p); }

// Powers of fp16, bf16 and fp32 are made in fp32, like squares, and in double where the sum of a
// load's is so large or small that some may have overflowed or vanished.
template <typename T>
struct Powers : Additive<T, double> {
  template <int N>
  __device__ static float fold_in_fp32(const float (&x)[N], const Params& p) {
    float powers[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      powers[i] = p.p == 3 ? fabsf(x[i] * x[i] * x[i]) : power_in_fp32(x[i], p.p);
    }
    return fold_tree<N>(powers, [](float a, float b) { return a + b; });
  }
  template <int N>
  __device__ static double fold(const Number<T> (&x)[N], const Params& p) {
    if constexpr (sizeof(T) <= 4) {
      if (static_cast<float>(p.p) == p.p) {
        const float sum = fold_in_fp32(x, p);
        if (sum > 1e-25f && sum < 1e37f) return sum;
      }
    }
    double sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += power_of(x[i], p.p);
    return sum;
  }
  __device__ static T finish(double acc, const Params& p) { return round_to<T>(pow(acc, 1 / p.p)); }
  __device__ static T finish_lane(double lane, const Params& p) { return finish(lane, p); }
};

// Not worth many registers.
template <typename Op>
inline constexpr bool kRare = false;
template <typename T>
inline constexpr bool kRare<Powers<T>> = true;

template <typename T>
struct Prod {
  using Element = T;
  using Lane = std::conditional_t<kIsFloat<T>, double, uint64_t>;  // no overflow on the way
  using Acc = Lane;
  using Out = std::conditional_t<kIsFloat<T>, T, int64_t>;
  static constexpr bool kTransforms = false;
  __device__ static Lane identity() { return 1; }
  __device__ static Lane meet(Lane a, Lane b) { return a * b; }
  __device__ static Acc widen(Lane lane, int64_t) { return lane; }
  __device__ static Acc combine(Acc a, Acc b) { return a * b; }
  template <int N, typename C>
  __device__ static Lane product(const C* x) {
    Lane wide[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kIsFloat<T>) {
        wide[i] = x[i];
      } else {
        wide[i] = static_cast<int64_t>(x[i]);
      }
    }
    return fold_tree<N>(wide, [](Lane a, Lane b) { return a * b; });
  }
  template <int N>
  __device__ static Lane fold(const Number<T> (&x)[N], const Params&) {
    // fp32 holds the product of two fp16 numbers exactly, and of two bf16 numbers if in its range.
    if constexpr (sizeof(T) == 2 && kIsFloat<T> && N % 2 == 0) {
      float pairs[N / 2];
      bool exact = true;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        pairs[i] = x[2 * i] * x[2 * i + 1];
        if constexpr (std::is_same_v<T, __nv_bfloat16>) {
          exact &= fabsf(pairs[i]) >= FLT_MIN && fabsf(pairs[i]) <= FLT_MAX;
        }
      }
      if (exact) return product<N / 2>(pairs);
    }
    if constexpr (sizeof(T) <= 2 && !kIsFloat<T> && N % 2 == 0) {  // pairs are in 32 bits
      Number<T> pairs[N / 2];
#pragma unroll
      for (int i = 0; i < N / 2; ++i) pairs[i] = x[2 * i] * x[2 * i + 1];
      return product<N / 2>(pairs);
    }
    return product<N>(x);
  }
  __device__ static Out finish(Acc acc, const Params&) {
    if constexpr (kIsFloat<T>) {
      return round_to<Out>(acc);
    } else {
      return acc;
    }
  }
  __device__ static Out finish_lane(Lane lane, const Params& p) { return finish(lane, p); }
};

template <typename C>
__device__ inline C lowest() {
  if constexpr (std::numeric_limits<C>::has_infinity) {
    return -std::numeric_limits<C>::infinity();
  } else {
    return std::numeric_limits<C>::min();
  }
}

// The largest; what makes it the smallest, or one of absolute values, is the bits' transform.
template <typename T>
struct Extreme {
  using Element = T;
  using Lane = Number<T>;
  using Acc = Lane;
  using Out = T;
  static constexpr bool kTransforms = true;
  __device__ static Lane identity() { return lowest<Lane>(); }
  __device__ static Lane meet(Lane a, Lane b) {
    if constexpr (std::is_same_v<Lane, float>) {
      return ptx::max_nan(a, b);
    } else if constexpr (std::is_same_v<Lane, double>) {
      return b > a || b != b ? b : a;
    } else {
      return b > a ? b : a;
    }
  }
  __device__ static Acc widen(Lane lane, int64_t) { return lane; }
  __device__ static Acc combine(Acc a, Acc b) { return meet(a, b); }
  template <int N>
  __device__ static Lane fold(const Number<T> (&x)[N], const Params&) {
    return fold_tree<N>(x, [](Lane a, Lane b) { return meet(a, b); });
  }
  __device__ static T finish(Acc acc, const Params& p) {
    return flip_back(p.transform, round_to<T>(acc));
  }
  __device__ static T finish_lane(Lane lane, const Params& p) { return finish(lane, p); }
};

// A value and where it stands; nothing yet stands at the last position there is.
template <typename C, typename Position>
struct Best {
  C value;
  Position position;
};

template <typename T>
struct Arg {
  using Element = T;
  using C = Number<T>;
  using Lane = Best<C, uint32_t>;  // from the start of the piece
  using Acc = Best<C, int64_t>;
  using Out = int64_t;
  static constexpr bool kTransforms = true;
  static constexpr uint32_t kNowhere = ~0u;

  // NaN beats everything but NaN.
  __device__ static bool beats(C x, C best) {
    if constexpr (kIsFloat<T>) {
      return x > best || (x != x && best == best);
    } else {
      return x > best;
    }
  }
  template <typename B>
  __device__ static B better(B a, B b) {
    const bool first = !beats(a.value, b.value) && b.position < a.position;
    return beats(b.value, a.value) || first ? b : a;
  }
  __device__ static Lane identity() { return {lowest<C>(), kNowhere}; }
  __device__ static Lane meet(Lane a, Lane b) { return better(a, b); }
  __device__ static Acc widen(Lane lane, int64_t base) {
    constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
    return {lane.value, lane.position == kNowhere ? kLast : base + lane.position};
  }
  __device__ static Acc combine(Acc a, Acc b) { return better(a, b); }
  // Few loads hold a number that beats all before: only of those it is asked which number it is.
  template <int N>
  __device__ static Lane take(Lane lane, const C (&x)[N], uint32_t first, uint32_t step) {
    const C top = fold_tree<N>(x, [](C a, C b) { return Extreme<T>::meet(a, b); });
    if (beats(top, lane.value) || lane.position == kNowhere) {
      lane.value = top;
#pragma unroll
      for (int i = N - 1; i >= 0; --i) {
        if (!beats(top, x[i])) lane.position = first + i * step;
      }
    }
    return lane;
  }

  // Of the columns of a word of fp16 or bf16, without a branch: as whole numbers that are in the
  // numbers' order and end with the row, counted backwards, so that the largest says which it is.
  static constexpr bool kHasPairs = sizeof(T) == 2 && kIsFloat<T>;
  __device__ static uint32_t in_order(uint32_t pair) {
    if constexpr (std::is_same_v<T, __half>) {
      pair = ptx::canonical_f16x2(pair);
    } else {
      pair = ptx::canonical_bf16x2(pair);
    }
    return pair ^ (ptx::signs_16x2(pair) & 0x7fff7fffu);
  }
  template <int kRows>
  __device__ static void take_pairs(Lane& low, Lane& high, const uint32_t (&pairs)[kRows],
                                    uint32_t first, uint32_t step) {
    int32_t low_keys[kRows], high_keys[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const uint32_t pair = in_order(pairs[row]), from_last = kRows - 1 - row;
      low_keys[row] = static_cast<int32_t>(__byte_perm(pair, from_last, 0x1054));
      high_keys[row] = static_cast<int32_t>((pair & 0xffff0000u) | from_last);
    }
    const auto larger = [](int32_t a, int32_t b) { return max(a, b); };
    take_key<kRows>(low, fold_tree<kRows>(low_keys, larger), first, step);
    take_key<kRows>(high, fold_tree<kRows>(high_keys, larger), first, step);
  }
  template <int kRows>
  __device__ static void take_key(Lane& lane, int32_t key, uint32_t first, uint32_t step) {
    const auto bits = static_cast<uint32_t>(key ^ ((key >> 31) & 0x7fff0000));
    C top;
    if constexpr (std::is_same_v<T, __half>) {
      const auto half = static_cast<uint16_t>(bits >> 16);
      __half number;
      memcpy(&number, &half, sizeof(half));
      top = __half2float(number);
    } else {
      top = __uint_as_float(bits & 0xffff0000u);
    }
    const bool wins = beats(top, lane.value) || lane.position == kNowhere;
    const uint32_t row = kRows - 1 - (static_cast<uint32_t>(key) & 0xffff);
    lane.value = wins ? top : lane.value;
    lane.position = wins ? first + row * step : lane.position;
  }

  __device__ static Out finish(Acc acc, const Params&) { return acc.position; }
  __device__ static Out finish_lane(Lane lane, const Params&) { return lane.position; }
};

// Of any kind: `lane` and the numbers x[i], which stand at first + i * step, behind all it has.
template <typename Op, int N>
__device__ inline typename Op::Lane take(const Params& p, typename Op::Lane lane,
                                         const Number<typename Op::Element> (&x)[N], uint32_t first,
                                         uint32_t step) {
  if constexpr (requires { Op::fold(x, p); }) {
    return Op::meet(lane, Op::fold(x, p));
  } else {
    return Op::take(lane, x, first, step);
  }
}

// The same of 16 bytes whose first element stands at `first`.
template <typename Op>
__device__ inline typename Op::Lane take_vector(const Params& p, typename Op::Lane lane, uint4 v,
                                                uint32_t first) {
  using T = typename Op::Element;
  Number<T> x[kVector<T>];
  unpack_vector<T, Op::kTransforms>(p.transform, v, x);
  return take<Op>(p, lane, x, first, 1);
}

// The same of the elements i only for which first + i, unsigned, is below `length`: those before
// the first have wrapped around. They stand at `base` + first + i.
template <typename Op>
__device__ inline typename Op::Lane take_part(const Params& p, typename Op::Lane lane, uint4 v,
                                              uint32_t first, uint32_t length, uint32_t base) {
  using T = typename Op::Element;
  constexpr int V = kVector<T>;
  const bool whole = first < length && length - first >= V;
  Number<T> x[V];
  unpack_vector<T, Op::kTransforms>(p.transform, v, x);
  if constexpr (requires { Op::fold(x, p); }) {
    if (!whole) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (first + i >= length) x[i] = static_cast<Number<T>>(Op::identity());
      }
    }
    return take<Op>(p, lane, x, 0, 1);
  } else {  // what is put in would have a position
    if (whole) return take<Op>(p, lane, x, base + first, 1);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Number<T> one[1] = {x[i]};
      if (first + i < length) lane = take<Op>(p, lane, one, base + first + i, 1);
    }
    return lane;
  }
}

}  // namespace xgemm::cuda::reduce
