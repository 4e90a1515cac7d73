// A warp's part of the product: units of the weight as mma's A, rows of X as its B.
#pragma once

#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/ptx/opaque.h"
#include "cuda/w4a16/dequant.cuh"
#include "cuda/w4a16/dequant_fp4.cuh"
#include "cuda/w4a16/sm80/loader.cuh"

namespace xgemm::cuda::w4a16::sm80 {

// acc[strip][rows8] is a fragment of D^T: columns gid and gid + 8 of the strip by two rows of X.
//
// The tensor cores sum code - 8, which is exact, over a group; its scale, and what the zero point
// is beyond 8, meet the fp32 sum once a group: code and zero need no common 16-bit format, and
// scales keep their own.
//
// kFp4: codes are E2M1, in MXFP4's one form: groups of 32, bf16 scales, no zeros.
template <typename T, typename Tile, bool kFp4 = false>
class WarpMma {
 public:
  static constexpr int kRows8 = Tile::kRows8, kStrips = Tile::kStrips;
  float acc[kStrips][kRows8][4] = {};

  // `rows`: the warp's first row of X in the tile. `channel_scales`: this warp's 64, with
  // group_size -1, in shared memory; zeros follow kBlockN further on.
  __device__ WarpMma(const Params& params, const uint16_t* channel_scales, int row, int lane)
      : params_(params), channel_scales_(channel_scales), lane_(lane) {
    const int in_matrix = lane % 8, matrix = lane / 8;
    x_offset_ = kPaired ? x_offset(row + matrix / 2 * 8 + in_matrix, matrix % 2)
                        : x_offset(row + in_matrix, matrix);
  }

  // `x`: the shared-memory address of X's [kBlockM, 128], `unit`: the bytes of the warp's strips.
  __device__ void multiply(uint32_t x, const char* unit) {
    if constexpr (Tile::kScaledWeights) {
      multiply_scaled(x, unit);
    } else if constexpr (kFp4) {
      multiply_unit<false>(x, unit);
    } else if (!params_.zeros && 1 << params_.group_quarters_log2 == kQuarters) {
      multiply_unit<true>(x, unit);
    } else {
      multiply_unit<false>(x, unit);
    }
  }

  // After the last unit.
  __device__ void finish() {
    if constexpr (kFp4 && kFp4Unit<T> != 1.0f) {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
#pragma unroll
        for (int r = 0; r < kRows8; ++r) {
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[s][r][i] *= kFp4Unit<T>;
        }
      }
    }
  }

 private:
  static_assert(!kFp4 || !Tile::kScaledWeights, "a scale may be more than a half can hold");
  static constexpr int kQuarters = kUnitK / 32;
  static constexpr uint32_t kMinusZeros = 0x80008000;
  // Two fragments of rows by an ldmatrix, 16 k of each, instead of 32 k of one: half as many
  // registers wait for their products.
  static constexpr bool kPaired = kRows8 == 8 || Tile::kScaledWeights;

  // Products of weights that have their scale: there are no sums of a group, whose registers go to
  // a product twice as wide, for which a row of X is read half as often.
  __device__ void multiply_scaled(uint32_t x, const char* unit) {
    // Else the eight offsets made of it keep registers over all units, and some of them spill.
    const int x_offset = ptx::opaque(x_offset_);
    const bool whole = 1 << params_.group_quarters_log2 == kQuarters;
    uint32_t scales[kStrips][2];
    load_scales(unit, 0, scales);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 codes[kStrips];
#pragma unroll
      for (int s = 0; s < kStrips; ++s) codes[s] = load_codes(unit, s, half);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int quarter = half * 2 + part;
        if (quarter > 0 && !whole) {
          load_scales(unit, quarter >> params_.group_quarters_log2, scales);
        }
#pragma unroll
        for (int k16 = 0; k16 < 2; ++k16) {
          uint32_t b[kRows8 / 2][4];  // two fragments of 8 rows each
#pragma unroll
          for (int r = 0; r < kRows8 / 2; ++r) {
            ptx::ldmatrix_x4(b[r],
                             x + (x_offset ^ (quarter * 64 + k16 * 32)) + r * 16 * kXRowBytes);
          }
#pragma unroll
          for (int s = 0; s < kStrips; ++s) {
            uint32_t a[4];
            dequantize_fragment<T>(word_of(codes[s], part * 2 + k16), a);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              a[i] =
                  ptx::fma_x2<T>(a[i], scales[s][i % 2], kMinusZeros);  // a product keeps its sign
            }
#pragma unroll
            for (int r = 0; r < kRows8; ++r) {
              ptx::mma_m16n8k16<T>(acc[s][r], a[0], a[1], a[2], a[3], b[r / 2][r % 2 * 2],
                                   b[r / 2][r % 2 * 2 + 1]);
            }
          }
        }
      }
    }
  }

  // Of a group: each strip's columns gid and gid + 8, twice in a register.
  __device__ void load_scales(const char* unit, int group, uint32_t (&scales)[kStrips][2]) const {
    const char* from = params_.per_channel ? reinterpret_cast<const char*>(channel_scales_)
                                           : unit + w4::kStripCodeBytes + group * 32;
    const int step = params_.per_channel ? 32 : params_.strip_bytes;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const auto* bits = reinterpret_cast<const uint16_t*>(from + s * step) + lane_ / 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) scales[s][i] = bits[i * 8] * 0x10001u;
    }
  }

  // 64 k of a strip: the lane's words, one for each 16 k.
  __device__ uint4 load_codes(const char* unit, int strip, int half) const {
    return *reinterpret_cast<const uint4*>(unit + strip * params_.strip_bytes + half * 512 +
                                           lane_ * 16);
  }

  __device__ static uint32_t word_of(const uint4& codes, int k16) {
    return k16 < 2 ? (k16 == 0 ? codes.x : codes.y) : (k16 == 2 ? codes.z : codes.w);
  }

  // kWhole: a group, without zeros, is the unit. Then nothing branches between its products, and
  // codes become fragments under the products of others.
  template <bool kWhole>
  __device__ void multiply_unit(uint32_t x, const char* unit) {
    // With few rows little is to be gained by more code, and a cold start has to fetch all of it.
    constexpr bool kFlat = kWhole && kRows8 >= 4;
    if constexpr (kFlat) {
      multiply_half<true, true>(x, unit, 0);
      multiply_half<true, false>(x, unit, 1);
    } else {
#pragma unroll 1
      for (int half = 0; half < 2; ++half) multiply_half<kWhole, false>(x, unit, half);
    }
    if constexpr (kWhole) scale_group<false, !kFlat>(unit, 0);
  }

  // kFirst: the sums start here, whatever they held.
  template <bool kWhole, bool kFirst>
  __device__ void multiply_half(uint32_t x, const char* unit, int half) {
    uint4 codes[kStrips];
#pragma unroll
    for (int s = 0; s < kStrips; ++s) codes[s] = load_codes(unit, s, half);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int quarter = half * 2 + part;
      uint32_t b[kRows8][4];  // two k16 of 8 rows
      if constexpr (!kPaired) {
#pragma unroll
        for (int r = 0; r < kRows8; ++r) {
          ptx::ldmatrix_x4(b[r], x + (x_offset_ ^ quarter * 64) + r * 8 * kXRowBytes);
        }
      }
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
        if constexpr (kPaired) {
#pragma unroll
          for (int r = 0; r < kRows8; r += 2) {
            uint32_t pair[4];
            ptx::ldmatrix_x4(pair,
                             x + (x_offset_ ^ (quarter * 64 + k16 * 32)) + r * 8 * kXRowBytes);
            b[r][2 * k16] = pair[0], b[r][2 * k16 + 1] = pair[1];
            b[r + 1][2 * k16] = pair[2], b[r + 1][2 * k16 + 1] = pair[3];
          }
        }
        if constexpr (!kWhole && !kFp4) {
          if (params_.zeros) sum_rows(b, k16);
        }
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
          uint32_t a[4];
          if constexpr (kFp4) {
            dequantize_fp4_fragment<T>(word_of(codes[s], part * 2 + k16), a);
          } else {
            dequantize_fragment<T>(word_of(codes[s], part * 2 + k16), a);
          }
#pragma unroll
          for (int r = 0; r < kRows8; ++r) {
            const uint32_t b0 = b[r][2 * k16], b1 = b[r][2 * k16 + 1];
            if (kFirst && part == 0 && k16 == 0) {
              ptx::mma_m16n8k16_first<T>(partial_[s][r], a[0], a[1], a[2], a[3], b0, b1);
            } else {
              ptx::mma_m16n8k16<T>(partial_[s][r], a[0], a[1], a[2], a[3], b0, b1);
            }
          }
        }
      }
      if constexpr (kFp4) {
        scale_group<false, true>(unit, quarter);
      } else if constexpr (!kWhole) {
        const int last = (1 << params_.group_quarters_log2) - 1;
        const int group = quarter >> params_.group_quarters_log2;
        if ((quarter & last) == last) scale_group<true, true>(unit, group);
      }
    }
  }

  // The sum of X over k, in every row of a fragment.
  __device__ void sum_rows(const uint32_t (&b)[kRows8][4], int k16) {
    const uint32_t ones[4] = {kOnes<T>, kOnes<T>, kOnes<T>, kOnes<T>};
#pragma unroll
    for (int r = 0; r < kRows8; ++r) {
      ptx::mma_m16n8k16<T>(x_sum_[r], ones, b[r][2 * k16], b[r][2 * k16 + 1]);
    }
  }

  // kClear: for the next group's sums.
  template <bool kMayHaveZeros, bool kClear>
  __device__ void scale_group(const char* unit, int group) {
    const char* scales = reinterpret_cast<const char*>(channel_scales_);
    int step = 32, zero_offset = Tile::kBlockN * 2;
    if (kFp4 || !params_.per_channel) {
      scales = unit + w4::kStripCodeBytes + group * 32;
      step = params_.strip_bytes;
      zero_offset = 32 * (4 >> params_.group_quarters_log2);
    }
    scales += lane_ / 4 * 2;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const auto* scale_bits = reinterpret_cast<const uint16_t*>(scales + s * step);
      const float scale[2] = {scale_to_float(scale_bits[0], kFp4 || params_.bf16_scales),
                              scale_to_float(scale_bits[8], kFp4 || params_.bf16_scales)};
      if (kMayHaveZeros && params_.zeros) {
        const auto* zero_bits = reinterpret_cast<const uint16_t*>(scales + s * step + zero_offset);
        const float zero[2] = {half_bits_to_float(zero_bits[0]) - w4::kSymmetricZero,
                               half_bits_to_float(zero_bits[8]) - w4::kSymmetricZero};
#pragma unroll
        for (int r = 0; r < kRows8; ++r) {
#pragma unroll
          for (int i = 0; i < 4; ++i) partial_[s][r][i] -= zero[i / 2] * x_sum_[r][i];
        }
      }
#pragma unroll
      for (int r = 0; r < kRows8; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc[s][r][i] = fmaf(scale[i / 2], partial_[s][r][i], acc[s][r][i]);
          if (kClear) partial_[s][r][i] = 0.0f;
        }
      }
    }
    if (kMayHaveZeros && params_.zeros) {
#pragma unroll
      for (int r = 0; r < kRows8; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x_sum_[r][i] = 0.0f;
      }
    }
  }

  const Params& params_;
  const uint16_t* channel_scales_;
  int lane_, x_offset_;
  float partial_[kStrips][kRows8][4] = {}, x_sum_[kRows8][4] = {};  // not with kScaledWeights
};

}  // namespace xgemm::cuda::w4a16::sm80
