// What each kind of reduction does to a lane: `step` takes an element in, for scalars and vectors
// alike; `meet` joins two vectors of lanes; `widen` and `combine` go on in the accumulator's type;
// `finish` makes the result. Included once for each ISA, after lanes.inl.

template <typename T>
inline constexpr bool kIsFloat = std::is_same_v<T, F16> || std::is_same_v<T, BF16> ||
                                 std::is_same_v<T, float> || std::is_same_v<T, double>;

// The type in which values of T can be compared: its own, or fp32 for the 16-bit floats.
template <typename T>
using Comparable = std::conditional_t<kIsFloat<T> && sizeof(T) == 2, float, T>;

// A short sum of T that cannot overflow within a block and fills a register with many lanes.
template <typename T>
using SumLane = std::conditional_t<
    std::is_same_v<T, double>, double,
    std::conditional_t<kIsFloat<T>, float, std::conditional_t<sizeof(T) <= 2, int32_t, uint64_t>>>;

// 0 - x, not -x: the absolute value of -0 is +0, whose reciprocal adds up with the others.
template <typename V>
XGEMM_INLINE V absolute(V x) {
  return x > 0 ? x : 0 - x;
}

// NaN, once there, stays: a comparison with it is false, and a new one is taken as it is.
template <bool kMax, typename V>
XGEMM_INLINE V extreme(V acc, V x) {
  V best;
#if XGEMM_REDUCE_AVX512
  if constexpr (std::is_same_v<V, Vec<float>>) {
    best = kMax ? V(_mm512_max_ps(x, acc)) : V(_mm512_min_ps(x, acc));
    return x != x ? x : best;
  } else if constexpr (std::is_same_v<V, Vec<double>>) {
    best = kMax ? V(_mm512_max_pd(x, acc)) : V(_mm512_min_pd(x, acc));
    return x != x ? x : best;
  }
#elif XGEMM_REDUCE_AVX2
  // One instruction, which gives its second operand where one is NaN; the compiler makes two of it.
  if constexpr (std::is_same_v<V, Vec<float>>) {
    best = kMax ? V(_mm256_max_ps(x, acc)) : V(_mm256_min_ps(x, acc));
    return x != x ? x : best;
  } else if constexpr (std::is_same_v<V, Vec<double>>) {
    best = kMax ? V(_mm256_max_pd(x, acc)) : V(_mm256_min_pd(x, acc));
    return x != x ? x : best;
  }
#endif
  if constexpr (kMax) {
    best = x > acc ? x : acc;
  } else {
    best = x < acc ? x : acc;
  }
  return x != x ? x : best;
}

template <typename C, bool kMax>
constexpr C worst() {
  using L = std::numeric_limits<C>;
  if constexpr (L::has_infinity) {
    return kMax ? -L::infinity() : L::infinity();
  } else {
    return kMax ? L::min() : L::max();
  }
}

// Sums and their like: lanes, then double or (wrapping, as in torch) 64-bit integers.
template <typename T, typename LaneType>
struct Additive {
  using Elem = T;
  using Lane = LaneType;
  using Acc = std::conditional_t<kIsFloat<T>, double, uint64_t>;
  using Out = std::conditional_t<kIsFloat<T>, T, int64_t>;
  static constexpr Lane kIdentity = 0;
  static constexpr Acc kAccIdentity = 0;
  XGEMM_INLINE static Acc widen(Lane lane) {
    if constexpr (kIsFloat<T>) {
      return lane;
    } else {
      return uint64_t(int64_t(lane));
    }
  }
  XGEMM_INLINE static Acc combine(Acc a, Acc b) { return a + b; }
  template <typename V>
  XGEMM_INLINE static V meet(V a, V b) {
    return a + b;
  }
};

template <typename T>
struct Sum : Additive<T, SumLane<T>> {
  using typename Additive<T, SumLane<T>>::Acc;
  using typename Additive<T, SumLane<T>>::Out;
  template <typename V>
  XGEMM_INLINE static V step(V acc, V x, const Params&) {
    return acc + x;
  }
  static Out finish(Acc acc, const Params& params) {
    if constexpr (kIsFloat<T>) {
      return from_double<Out>(acc / params.divisor);
    } else {
      return Out(acc);
    }
  }
};

template <typename T>
struct Prod {
  using Elem = T;
  using Lane = std::conditional_t<kIsFloat<T>, double, uint64_t>;  // no overflow on the way
  using Acc = Lane;
  using Out = std::conditional_t<kIsFloat<T>, T, int64_t>;
  static constexpr Lane kIdentity = 1;
  static constexpr Acc kAccIdentity = 1;
  template <typename V>
  XGEMM_INLINE static V step(V acc, V x, const Params&) {
    return acc * x;
  }
  XGEMM_INLINE static Acc widen(Lane lane) { return lane; }
  XGEMM_INLINE static Acc combine(Acc a, Acc b) { return a * b; }
  template <typename V>
  XGEMM_INLINE static V meet(V a, V b) {
    return a * b;
  }
  static Out finish(Acc acc, const Params&) {
    if constexpr (kIsFloat<T>) {
      return from_double<Out>(acc);
    } else {
      return Out(acc);
    }
  }
};

template <typename T, bool kMax>
struct Extreme {
  using Elem = T;
  using Lane = Comparable<T>;
  using Acc = Lane;
  using Out = T;
  static constexpr Lane kIdentity = worst<Lane, kMax>();
  static constexpr Acc kAccIdentity = kIdentity;
  template <typename V>
  XGEMM_INLINE static V step(V acc, V x, const Params&) {
    return extreme<kMax>(acc, x);
  }
  XGEMM_INLINE static Acc widen(Lane lane) { return lane; }
  XGEMM_INLINE static Acc combine(Acc a, Acc b) { return extreme<kMax>(a, b); }
  template <typename V>
  XGEMM_INLINE static V meet(V a, V b) {
    return extreme<kMax>(a, b);
  }
  static Out finish(Acc acc, const Params&) {
    if constexpr (kIsFloat<T>) {
      return from_double<Out>(double(acc));
    } else {
      return acc;
    }
  }
};
template <typename T>
using Amax = Extreme<T, true>;
template <typename T>
using Amin = Extreme<T, false>;

template <typename T>
struct NormZero : Additive<T, Comparable<T>> {
  template <typename V>
  XGEMM_INLINE static V step(V acc, V x, const Params&) {
    return acc + (x != 0 ? V{} + 1 : V{});
  }
  static T finish(double acc, const Params&) { return from_double<T>(acc); }
};

template <typename T>
struct NormOne : Additive<T, Comparable<T>> {
  template <typename V>
  XGEMM_INLINE static V step(V acc, V x, const Params&) {
    return acc + absolute(x);
  }
  static T finish(double acc, const Params&) { return from_double<T>(acc); }
};

template <typename T, typename Lane>
struct SumOfSquares : Additive<T, Lane> {
  template <typename V>
  XGEMM_INLINE static V step(V acc, V x, const Params&) {
    return acc + x * x;
  }
  static T finish(double acc, const Params&) { return from_double<T>(std::sqrt(acc)); }
};

// The square of an fp16 number is in fp32's range. That of a bf16 or fp32 one may not be: a block
// whose sum is so large or small that squares may have overflowed or vanished is summed again in
// double.
template <typename T>
struct NormTwo : SumOfSquares<T, Comparable<T>> {};
template <typename T>
  requires(std::is_same_v<T, BF16> || std::is_same_v<T, float>)
struct NormTwo<T> : SumOfSquares<T, float> {
  using Exact = SumOfSquares<T, double>;
  XGEMM_INLINE static bool doubtful(double sum) { return !(sum > 1e-25 && sum < 1e37); }
};

// Op in lanes that lose nothing.
template <typename Op>
struct ExactOf {
  using Type = Op;
};
template <typename Op>
  requires requires { typename Op::Exact; }
struct ExactOf<Op> {
  using Type = typename Op::Exact;
};

template <typename T, bool kMax>
struct NormExtreme : Extreme<T, kMax> {
  using Lane = Comparable<T>;
  static constexpr Lane kIdentity = kMax ? Lane(0) : worst<Lane, false>();
  static constexpr Lane kAccIdentity = kIdentity;
  template <typename V>
  XGEMM_INLINE static V step(V acc, V x, const Params&) {
    return extreme<kMax>(acc, absolute(x));
  }
  static T finish(Lane acc, const Params&) { return from_double<T>(std::fabs(double(acc))); }
};
template <typename T>
using NormMaxAbs = NormExtreme<T, true>;
template <typename T>
using NormMinAbs = NormExtreme<T, false>;

template <typename T>
struct NormInt : Additive<T, double> {
  template <typename V>
  XGEMM_INLINE static V step(V acc, V x, const Params& params) {
    const int order = int(params.p);
    V factor = absolute(x);
    V power = V{} + 1;
    for (int left = order < 0 ? -order : order;;) {
      if (left & 1) power *= factor;
      left >>= 1;
      if (left == 0) break;
      factor *= factor;
    }
    return acc + (order < 0 ? 1 / power : power);
  }
  static T finish(double acc, const Params& params) {
    return from_double<T>(std::pow(acc, 1 / params.p));
  }
};

template <typename T>
struct NormAny : Additive<T, double> {
  template <typename V>
  XGEMM_INLINE static V step(V acc, V x, const Params& params) {
    if constexpr (std::is_same_v<V, double>) {
      return acc + std::pow(std::fabs(x), params.p);
    } else {
      for (int i = 0; i < int(sizeof(V) / sizeof(double)); ++i) {
        acc[i] += std::pow(std::fabs(x[i]), params.p);
      }
      return acc;
    }
  }
  static T finish(double acc, const Params& params) {
    return from_double<T>(std::pow(acc, 1 / params.p));
  }
};
