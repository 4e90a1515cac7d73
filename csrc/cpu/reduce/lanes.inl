// Lanes of elements: vectors of the compiler's own kind, loaded from any element type.
// Included once for each ISA, inside its namespace and under its target; so no include guard.

#define XGEMM_INLINE [[gnu::always_inline]] inline

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

template <typename C, int kLanes>
struct VecOf {
  typedef C type __attribute__((vector_size(kLanes * sizeof(C))));
};
template <typename C, int kLanes = kVectorBytes / int(sizeof(C))>
using Vec = typename VecOf<C, kLanes>::type;

template <typename To, typename From>
XGEMM_INLINE To bit_cast_to(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// fp16 to fp32 by shifting the exponent into place; multiplying by 2^112 puts its bias right, for
// subnormals too. Infinity and NaN then still need fp32's largest exponent.
template <int kLanes>
XGEMM_INLINE Vec<float, kLanes> widen_f16_bits(Vec<uint16_t, kLanes> half) {
  using U = Vec<uint32_t, kLanes>;
  using F = Vec<float, kLanes>;
  const U h = __builtin_convertvector(half, U);
  const U shifted = (h & 0x7fff) << 13;
  const F scaled = bit_cast_to<F>(shifted) * 0x1p112f;
  const U special = bit_cast_to<U>((h & 0x7c00) == 0x7c00) & 0x7f800000u;
  return bit_cast_to<F>(bit_cast_to<U>(scaled) | special | (h & 0x8000) << 16);
}

template <int kLanes>
XGEMM_INLINE Vec<float, kLanes> widen_f16(Vec<uint16_t, kLanes> half) {
#if XGEMM_REDUCE_AVX512
  if constexpr (kLanes == 16) {
    return bit_cast_to<Vec<float, 16>>(_mm512_cvtph_ps(bit_cast_to<__m256i>(half)));
  }
#endif
#if XGEMM_REDUCE_AVX2 || XGEMM_REDUCE_AVX512
  if constexpr (kLanes == 8) {
    return bit_cast_to<Vec<float, 8>>(_mm256_cvtph_ps(bit_cast_to<__m128i>(half)));
  } else if constexpr (kLanes == 4) {
    return bit_cast_to<Vec<float, 4>>(_mm_cvtph_ps(_mm_cvtsi64_si128(bit_cast_to<int64_t>(half))));
  } else {
    return widen_f16_bits<kLanes>(half);
  }
#else
  return widen_f16_bits<kLanes>(half);
#endif
}

// Integers to wider ones of the same sign. The compiler splits a conversion that more than doubles
// the width, or goes from half a register, into several steps; the instruction does it in one.
template <typename C, int kLanes, typename T>
XGEMM_INLINE Vec<C, kLanes> widen_integers(const T* x) {
#if XGEMM_REDUCE_AVX512
  if constexpr (kLanes * sizeof(C) == 64 && (sizeof(C) == 4 || sizeof(T) == 4)) {
    __m512i wide;
    if constexpr (sizeof(T) == 1) {
      const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
      wide = std::is_signed_v<T> ? _mm512_cvtepi8_epi32(narrow) : _mm512_cvtepu8_epi32(narrow);
    } else {
      const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
      if constexpr (sizeof(T) == 2) {
        wide = std::is_signed_v<T> ? _mm512_cvtepi16_epi32(narrow) : _mm512_cvtepu16_epi32(narrow);
      } else {
        static_assert(std::is_same_v<T, int32_t>);
        wide = _mm512_cvtepi32_epi64(narrow);
      }
    }
    return bit_cast_to<Vec<C, kLanes>>(wide);
  }
#endif
#if XGEMM_REDUCE_AVX2 || XGEMM_REDUCE_AVX512
  if constexpr (kLanes * sizeof(C) == 32 && (sizeof(C) == 4 || sizeof(T) == 4)) {
    __m128i narrow = _mm_setzero_si128();
    std::memcpy(&narrow, x, kLanes * sizeof(T));
    __m256i wide;
    if constexpr (std::is_same_v<T, int8_t>) {
      wide = _mm256_cvtepi8_epi32(narrow);
    } else if constexpr (std::is_same_v<T, uint8_t>) {
      wide = _mm256_cvtepu8_epi32(narrow);
    } else if constexpr (std::is_same_v<T, int16_t>) {
      wide = _mm256_cvtepi16_epi32(narrow);
    } else if constexpr (std::is_same_v<T, uint16_t>) {
      wide = _mm256_cvtepu16_epi32(narrow);
    } else {
      static_assert(std::is_same_v<T, int32_t>);
      wide = _mm256_cvtepi32_epi64(narrow);
    }
    return bit_cast_to<Vec<C, kLanes>>(wide);
  }
#endif
  Vec<T, kLanes> narrow;
  std::memcpy(&narrow, x, sizeof(narrow));
  return __builtin_convertvector(narrow, Vec<C, kLanes>);
}

// kLanes contiguous elements of type T as lanes of type C; x needs no alignment.
template <typename C, typename T, int kLanes = kVectorBytes / int(sizeof(C))>
XGEMM_INLINE Vec<C, kLanes> load(const T* x) {
  using V = Vec<C, kLanes>;
  if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, BF16>) {
    Vec<float, kLanes> wide;
    if constexpr (std::is_same_v<T, F16>) {
      Vec<uint16_t, kLanes> bits;
      std::memcpy(&bits, x, sizeof(bits));
      wide = widen_f16<kLanes>(bits);
    } else {
      const uint16_t* bits = &x->bits;
      wide = bit_cast_to<Vec<float, kLanes>>(widen_integers<uint32_t, kLanes>(bits) << 16);
    }
    if constexpr (std::is_same_v<C, float>) {
      return wide;
    } else {
      return __builtin_convertvector(wide, V);
    }
  } else if constexpr (std::is_same_v<C, T>) {
    V v;
    std::memcpy(&v, x, sizeof(v));
    return v;
  } else if constexpr (std::is_integral_v<T>) {
    return widen_integers<C, kLanes>(x);
  } else {
    Vec<T, kLanes> narrow;
    std::memcpy(&narrow, x, sizeof(narrow));
    return __builtin_convertvector(narrow, V);
  }
}

// The same for what comes from memory, which Zen 4 reads 1.1 to 1.2 times as fast by halves of
// cache lines. From the caches whole lines are faster.
template <typename C, typename T>
XGEMM_INLINE Vec<C> load_from_memory(const T* x) {
#if XGEMM_REDUCE_AVX512
  if constexpr (std::is_same_v<C, T>) {
    const __m256i* half = reinterpret_cast<const __m256i*>(x);
    return bit_cast_to<Vec<C>>(_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(half)),
                                                  _mm256_loadu_si256(half + 1), 1));
  }
#endif
  return load<C>(x);
}

template <typename C, typename T>
XGEMM_INLINE C load_one(const T* x) {
  if constexpr (std::is_same_v<T, F16>) {
#if XGEMM_REDUCE_AVX2 || XGEMM_REDUCE_AVX512
    return C(_cvtsh_ss(x->bits));
#else
    const Vec<uint16_t, 4> bits = {x->bits};
    return C(widen_f16_bits<4>(bits)[0]);
#endif
  } else if constexpr (std::is_same_v<T, BF16>) {
    return C(bit_cast_to<float>(uint32_t(x->bits) << 16));
  } else {
    return C(*x);
  }
}

// Round to nearest even, from the widest type at once.
XGEMM_INLINE uint16_t to_bf16(double wide) {
  if (wide != wide) return 0x7fc0;
  // Round to odd at fp32, so that the second rounding sees on which side of a tie the value lies.
  float value = float(wide);
  uint32_t bits = bit_cast_to<uint32_t>(value);
  if (double(value) != wide && (bits & 0x7f800000u) != 0x7f800000u) {
    const bool away = (value < 0 ? -double(value) : double(value)) > (wide < 0 ? -wide : wide);
    if (away) --bits;
    bits |= 1;
  }
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

XGEMM_INLINE uint16_t to_f16(double wide) {
  const uint64_t bits = bit_cast_to<uint64_t>(wide);
  const uint16_t sign = uint16_t(bits >> 48 & 0x8000);
  const double size = wide < 0 ? -wide : wide;
  if (wide != wide) return sign | 0x7e00;
  if (size >= 65520.0) return sign | 0x7c00;  // the tie between the largest number and 2^16
  if (size < 0x1p-14) {
    // Subnormal: adding 2^28 leaves units of 2^-24, rounded to nearest even by the addition.
    const double shifted = size + 0x1p28;
    return sign | uint16_t(bit_cast_to<uint64_t>(shifted) & 0xffff);
  }
  const uint64_t magnitude = bits & 0x7fffffffffffffffull;
  const uint64_t rounded = magnitude + ((1ull << 41) - 1) + (magnitude >> 42 & 1);
  return sign | uint16_t((rounded >> 42) - (uint64_t(1023 - 15) << 10));
}

template <typename T>
XGEMM_INLINE T from_double(double value) {
  if constexpr (std::is_same_v<T, F16>) {
    return F16{to_f16(value)};
  } else if constexpr (std::is_same_v<T, BF16>) {
    return BF16{to_bf16(value)};
  } else {
    return T(value);
  }
}
