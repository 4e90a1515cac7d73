// The primitives over blocks, built from lanes.inl and lane_ops.inl. Included once for each ISA.

// Elements whose lanes are summed before the lanes go into the accumulator: short enough that fp32
// keeps its accuracy, long enough that widening costs nothing.
constexpr int64_t kRunBlock = 4096;
constexpr int64_t kRowBlock = 64;  // the same for columns: rows between two foldings

// Elements that need no conversion: they are reduced as fast as caches give them.
template <typename Op>
inline constexpr bool kAsTheyAre = std::is_same_v<typename Op::Lane, typename Op::Elem>;

// Bytes from which an input is read as memory likes it, where the L3 cache has 32 MiB (Zen 4,
// docs/measurements/cpu.md): converting takes longer than that cache does, so it pays later.
template <typename Op>
inline constexpr int64_t kMemoryBytes = int64_t(kAsTheyAre<Op> ? 24 : 64) << 20;

// Bytes of a run from memory that is read at four places at once: from 32 KiB each they gain.
constexpr int64_t kStreamsBytes = 128 << 10;

// Sums from memory gain by loads of half a cache line; extremes, whose comparison reads it twice,
// do not.
template <typename Op>
inline constexpr bool kByHalves =
    kAsTheyAre<Op> && std::is_base_of_v<Additive<typename Op::Elem, typename Op::Lane>, Op>;

template <typename Op, typename V>
XGEMM_INLINE typename Op::Acc fold_halves(V v) {
  constexpr int kLanes = sizeof(V) / sizeof(typename Op::Acc);
  if constexpr (kLanes == 2) {
    return Op::combine(v[0], v[1]);
  } else {
    Vec<typename Op::Acc, kLanes / 2> half[2];
    std::memcpy(half, &v, sizeof(v));
    return fold_halves<Op>(Op::meet(half[0], half[1]));
  }
}

template <typename Op>
XGEMM_INLINE typename Op::Acc fold_lanes(Vec<typename Op::Lane> v) {
  using Lane = typename Op::Lane;
  using Acc = typename Op::Acc;
  if constexpr (std::is_same_v<Lane, Acc>) {
    return fold_halves<Op>(v);
  } else {
    constexpr int kHalf = sizeof(v) / sizeof(Lane) / 2;
    Vec<Lane, kHalf> half[2];
    std::memcpy(half, &v, sizeof(v));
    using Wide = Vec<Acc, kHalf>;
    return fold_halves<Op>(
        Op::meet(__builtin_convertvector(half[0], Wide), __builtin_convertvector(half[1], Wide)));
  }
}

template <typename Op>
XGEMM_INLINE Vec<typename Op::Lane> splat(typename Op::Lane value) {
  Vec<typename Op::Lane> v;
  for (int i = 0; i < int(sizeof(v) / sizeof(value)); ++i) v[i] = value;
  return v;
}

template <typename Op>
XGEMM_INLINE typename Op::Acc meet_lanes(const Vec<typename Op::Lane> (&lanes)[4]) {
  return fold_lanes<Op>(Op::meet(Op::meet(lanes[0], lanes[1]), Op::meet(lanes[2], lanes[3])));
}

template <typename Op, bool kFromMemory>
typename Op::Acc reduce_run(const typename Op::Elem* x, int64_t n, const Params& params) {
  using Lane = typename Op::Lane;
  using V = Vec<Lane>;
  constexpr int kLanes = sizeof(V) / sizeof(Lane);
  V lanes[4];
  for (V& v : lanes) v = splat<Op>(Op::kIdentity);
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int u = 0; u < 4; ++u) {
      const typename Op::Elem* at = x + i + u * kLanes;
      const V v = kFromMemory ? load_from_memory<Lane>(at) : load<Lane>(at);
      lanes[u] = Op::step(lanes[u], v, params);
    }
  }
  for (; i + kLanes <= n; i += kLanes) lanes[0] = Op::step(lanes[0], load<Lane>(x + i), params);
  typename Op::Acc acc = meet_lanes<Op>(lanes);
  for (; i < n; ++i) {
    const Lane lane = Op::step(Lane(Op::kIdentity), load_one<Lane>(x + i), params);
    acc = Op::combine(acc, Op::widen(lane));
  }
  return acc;
}

template <typename Op>
XGEMM_INLINE typename Op::Acc reduce_block(const typename Op::Elem* x, int64_t n,
                                           const Params& params) {
  if constexpr (kByHalves<Op>) {
    if (params.in_bytes >= kMemoryBytes<Op>) return reduce_run<Op, true>(x, n, params);
  }
  return reduce_run<Op, false>(x, n, params);
}

// kRunBlock elements from memory, a fourth at each of four places that are `apart` from each other:
// the hardware fetches ahead at all of them.
template <typename Op>
typename Op::Acc reduce_streams(const typename Op::Elem* x, int64_t apart, const Params& params) {
  using Lane = typename Op::Lane;
  using V = Vec<Lane>;
  constexpr int kLanes = sizeof(V) / sizeof(Lane);
  V lanes[4];
  for (V& v : lanes) v = splat<Op>(Op::kIdentity);
  for (int64_t i = 0; i < kRunBlock / 4; i += kLanes) {
    for (int u = 0; u < 4; ++u) {
      lanes[u] = Op::step(lanes[u], load_from_memory<Lane>(x + u * apart + i), params);
    }
  }
  return meet_lanes<Op>(lanes);
}

// What `reduce` makes of a block, made again where its lanes may have lost something.
template <typename Op, typename F>
XGEMM_INLINE typename Op::Acc checked(F&& reduce) {
  const typename Op::Acc acc = reduce(Op{});
  if constexpr (requires { Op::doubtful(acc); }) {
    if (Op::doubtful(acc)) return reduce(typename Op::Exact{});
  }
  return acc;
}

template <typename Op>
struct Plain {
  using Elem = typename Op::Elem;
  using Lane = typename Op::Lane;
  using Acc = typename Op::Acc;
  using V = Vec<Lane>;
  static constexpr int kLanes = sizeof(V) / sizeof(Lane);

  static void init(void* acc, int64_t count) {
    std::fill_n(static_cast<Acc*>(acc), count, Acc(Op::kAccIdentity));
  }

  static void rows(const void* x_, int64_t row_stride, int64_t rows, int64_t n, void* acc_,
                   int64_t /*base*/, const Params& params) {
    const Elem* x = static_cast<const Elem*>(x_);
    Acc* acc = static_cast<Acc*>(acc_);
    for (int64_t r = 0; r < rows; ++r, x += row_stride) {
      if (n < kLanes) {
        using Exact = typename ExactOf<Op>::Type;
        using ExactLane = typename Exact::Lane;
        for (int64_t i = 0; i < n; ++i) {
          const ExactLane lane =
              Exact::step(ExactLane(Exact::kIdentity), load_one<ExactLane>(x + i), params);
          acc[r] = Op::combine(acc[r], Exact::widen(lane));
        }
        continue;
      }
      int64_t i = 0;
      if (params.in_bytes >= kMemoryBytes<Op> && n >= kStreamsBytes / int64_t(sizeof(Elem))) {
        const int64_t apart = n / kRunBlock * (kRunBlock / 4);
        for (; i < apart; i += kRunBlock / 4) {
          acc[r] = Op::combine(acc[r], checked<Op>([&]<typename O>(O) {
                                 return reduce_streams<O>(x + i, apart, params);
                               }));
        }
        i = 4 * apart;
      }
      for (; i < n; i += kRunBlock) {
        const int64_t block = std::min(kRunBlock, n - i);
        acc[r] = Op::combine(acc[r], checked<Op>([&]<typename O>(O) {
                               return reduce_block<O>(x + i, block, params);
                             }));
      }
    }
  }

  // kRows rows at once: the lanes are read and written once for all of them.
  template <int kRows>
  XGEMM_INLINE static void add_rows(const Elem* x, int64_t row_stride, int64_t cols, Lane* lanes,
                                    const Params& params) {
    int64_t j = 0;
    for (; j + kLanes <= cols; j += kLanes) {
      V acc;
      std::memcpy(&acc, lanes + j, sizeof(acc));
      for (int r = 0; r < kRows; ++r) {
        acc = Op::step(acc, load<Lane>(x + r * row_stride + j), params);
      }
      std::memcpy(lanes + j, &acc, sizeof(acc));
    }
    for (; j < cols; ++j) {
      Lane acc = lanes[j];
      for (int r = 0; r < kRows; ++r) {
        acc = Op::step(acc, load_one<Lane>(x + r * row_stride + j), params);
      }
      lanes[j] = acc;
    }
  }

  // lanes[j] = op over n rows of column j
  XGEMM_INLINE static void reduce_rows(const Elem* x, int64_t row_stride, int64_t n, int64_t cols,
                                       Lane* lanes, const Params& params) {
    std::fill_n(lanes, cols, Lane(Op::kIdentity));
    int64_t r = 0;
    for (; r + 4 <= n; r += 4) add_rows<4>(x + r * row_stride, row_stride, cols, lanes, params);
    for (; r < n; ++r) add_rows<1>(x + r * row_stride, row_stride, cols, lanes, params);
  }

  static void cols(const void* x_, int64_t row_stride, int64_t n, int64_t cols, void* acc_,
                   int64_t /*base*/, const Params& params) {
    const Elem* x = static_cast<const Elem*>(x_);
    Acc* acc = static_cast<Acc*>(acc_);
    alignas(64) Lane lanes[kMaxTile];
    for (int64_t begin = 0; begin < n; begin += kRowBlock) {
      const int64_t rows = std::min(kRowBlock, n - begin);
      const Elem* block = x + begin * row_stride;
      reduce_rows(block, row_stride, rows, cols, lanes, params);
      if constexpr (requires { Op::doubtful(Acc(0)); }) {
        bool doubtful = false;
        for (int64_t j = 0; j < cols; ++j) doubtful |= Op::doubtful(lanes[j]);
        if (doubtful) {
          using Exact = typename Op::Exact;
          alignas(64) typename Exact::Lane exact[kMaxTile];
          Plain<Exact>::reduce_rows(block, row_stride, rows, cols, exact, params);
          for (int64_t j = 0; j < cols; ++j) acc[j] = Op::combine(acc[j], exact[j]);
          continue;
        }
      }
      for (int64_t j = 0; j < cols; ++j) acc[j] = Op::combine(acc[j], Op::widen(lanes[j]));
    }
  }

  static void combine(void* acc_, const void* other_, int64_t count) {
    Acc* acc = static_cast<Acc*>(acc_);
    const Acc* other = static_cast<const Acc*>(other_);
    for (int64_t i = 0; i < count; ++i) acc[i] = Op::combine(acc[i], other[i]);
  }

  static void store(const void* acc_, int64_t count, void* out_, int64_t out_stride,
                    const Params& params) {
    const Acc* acc = static_cast<const Acc*>(acc_);
    typename Op::Out* out = static_cast<typename Op::Out*>(out_);
    for (int64_t i = 0; i < count; ++i) out[i * out_stride] = Op::finish(acc[i], params);
  }

  static constexpr Kernels kTable = {sizeof(Acc), init, rows, cols, combine, store};
};

// A value and where it was; no position yet is -1.
template <typename C>
struct Best {
  C value;
  int64_t index;
};

template <typename T, bool kMax>
struct Arg {
  using Elem = T;
  // At least 32 bits, so that a lane of positions is as wide as one of values.
  using C = std::conditional_t<(sizeof(Comparable<T>) < 4), int32_t, Comparable<T>>;
  using I = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;
  using Acc = Best<C>;
  using V = Vec<C>;
  using VI = Vec<I>;
  static constexpr int kLanes = sizeof(V) / sizeof(C);
  using Op = Extreme<T, kMax>;

  // True where x beats best: NaN beats everything but NaN. `|` and `&` work on lanes too.
  template <typename X>
  XGEMM_INLINE static auto beats(X x, X best) {
    if constexpr (kMax) {
      return (x > best) | ((x != x) & (best == best));
    } else {
      return (x < best) | ((x != x) & (best == best));
    }
  }

  static void init(void* acc, int64_t count) {
    std::fill_n(static_cast<Acc*>(acc), count, Acc{C(0), -1});
  }

  static void take(Acc& best, C value, int64_t index) {
    if (best.index < 0 || beats(value, best.value)) best = {value, index};
  }

  static constexpr int64_t kSearch = 4 * kLanes;

  // Whether `best` is among kSearch elements.
  XGEMM_INLINE static bool holds(const Elem* x, C best) {
    const V wanted = V{} + best;
    VI found{};
    for (int u = 0; u < 4; ++u) {
      const V v = load<C>(x + u * kLanes);
      found |= (v == wanted) | ((v != v) & (wanted != wanted));
    }
    uint64_t words[sizeof(VI) / sizeof(uint64_t)], any = 0;
    std::memcpy(words, &found, sizeof(words));
    for (const uint64_t word : words) any |= word;
    return any != 0;
  }

  // Blocks are first only compared; the one block that holds the best is then searched for it.
  static void rows(const void* x_, int64_t row_stride, int64_t rows, int64_t n, void* acc_,
                   int64_t base, const Params& params) {
    constexpr int64_t kBlock = 1024;
    const Elem* x = static_cast<const Elem*>(x_);
    Acc* acc = static_cast<Acc*>(acc_);
    for (int64_t r = 0; r < rows; ++r, x += row_stride) {
      int64_t where = -1;
      C best = 0;
      for (int64_t i = 0; i < n; i += kBlock) {
        const C value = C(reduce_block<Op>(x + i, std::min(kBlock, n - i), params));
        if (where < 0 || beats(value, best)) {
          best = value;
          where = i;
        }
      }
      if (where < 0 || (acc[r].index >= 0 && !beats(best, acc[r].value))) continue;
      while (where + kSearch <= n && !holds(x + where, best)) where += kSearch;
      while (true) {
        const C value = load_one<C>(x + where);
        if (value == best || (best != best && value != value)) break;
        ++where;
      }
      acc[r] = {best, base + where};
    }
  }

  static void cols(const void* x_, int64_t row_stride, int64_t n, int64_t cols, void* acc_,
                   int64_t base, const Params&) {
    constexpr int64_t kMaxRows = int64_t(1) << 30;  // positions within a block fit 32 bits
    const Elem* x = static_cast<const Elem*>(x_);
    Acc* acc = static_cast<Acc*>(acc_);
    alignas(64) C best[kMaxTile];
    alignas(64) I index[kMaxTile];
    for (int64_t begin = 0; begin < n; begin += kMaxRows) {
      const Elem* block = x + begin * row_stride;
      const int64_t rows = std::min(kMaxRows, n - begin);
      for (int64_t j = 0; j < cols; ++j) {
        best[j] = load_one<C>(block + j);
        index[j] = 0;
      }
      for (int64_t r = 1; r < rows; ++r) {
        compare_row(block + r * row_stride, I(r), cols, best, index);
      }
      for (int64_t j = 0; j < cols; ++j) take(acc[j], best[j], base + begin + index[j]);
    }
  }

  XGEMM_INLINE static void compare_row(const Elem* x, I r, int64_t cols, C* best, I* index) {
    int64_t j = 0;
    for (; j + kLanes <= cols; j += kLanes) {
      V b;
      VI at;
      std::memcpy(&b, best + j, sizeof(b));
      std::memcpy(&at, index + j, sizeof(at));
      const V v = load<C>(x + j);
      const auto won = beats(v, b);
      b = won ? v : b;
      at = won ? VI{} + r : at;
      std::memcpy(best + j, &b, sizeof(b));
      std::memcpy(index + j, &at, sizeof(at));
    }
    for (; j < cols; ++j) {
      const C v = load_one<C>(x + j);
      if (beats(v, best[j])) {
        best[j] = v;
        index[j] = r;
      }
    }
  }

  // `other` comes later in the order, so that only a better one replaces what is there.
  static void combine(void* acc_, const void* other_, int64_t count) {
    Acc* acc = static_cast<Acc*>(acc_);
    const Acc* other = static_cast<const Acc*>(other_);
    for (int64_t i = 0; i < count; ++i) {
      if (other[i].index >= 0) take(acc[i], other[i].value, other[i].index);
    }
  }

  static void store(const void* acc_, int64_t count, void* out_, int64_t out_stride,
                    const Params&) {
    const Acc* acc = static_cast<const Acc*>(acc_);
    int64_t* out = static_cast<int64_t*>(out_);
    for (int64_t i = 0; i < count; ++i) out[i * out_stride] = acc[i].index;
  }

  static constexpr Kernels kTable = {sizeof(Acc), init, rows, cols, combine, store};
};

template <typename T>
const Kernels* kernels_of(Kind kind) {
  switch (kind) {
    case Kind::kSum:
      return &Plain<Sum<T>>::kTable;
    case Kind::kProd:
      return &Plain<Prod<T>>::kTable;
    case Kind::kAmax:
      return &Plain<Amax<T>>::kTable;
    case Kind::kAmin:
      return &Plain<Amin<T>>::kTable;
    case Kind::kArgmax:
      return &Arg<T, true>::kTable;
    case Kind::kArgmin:
      return &Arg<T, false>::kTable;
    default:
      break;
  }
  if constexpr (kIsFloat<T>) {
    switch (kind) {
      case Kind::kNormZero:
        return &Plain<NormZero<T>>::kTable;
      case Kind::kNormOne:
        return &Plain<NormOne<T>>::kTable;
      case Kind::kNormTwo:
        return &Plain<NormTwo<T>>::kTable;
      case Kind::kNormMaxAbs:
        return &Plain<NormMaxAbs<T>>::kTable;
      case Kind::kNormMinAbs:
        return &Plain<NormMinAbs<T>>::kTable;
      case Kind::kNormInt:
        return &Plain<NormInt<T>>::kTable;
      case Kind::kNormAny:
        return &Plain<NormAny<T>>::kTable;
      default:
        break;
    }
  }
  return nullptr;
}

inline const Kernels* find_kernels(Kind kind, DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return kernels_of<F16>(kind);
    case DType::kBF16:
      return kernels_of<BF16>(kind);
    case DType::kF32:
      return kernels_of<float>(kind);
    case DType::kF64:
      return kernels_of<double>(kind);
    case DType::kI8:
      return kernels_of<int8_t>(kind);
    case DType::kI16:
      return kernels_of<int16_t>(kind);
    case DType::kI32:
      return kernels_of<int32_t>(kind);
    case DType::kI64:
      return kernels_of<int64_t>(kind);
    case DType::kU8:
    case DType::kBool:  // a byte of 0 or 1
      return kernels_of<uint8_t>(kind);
  }
  return nullptr;
}
