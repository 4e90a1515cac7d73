// Packed weights as a dense matrix. A warp takes a strip's 64 channels at a time: a lane's words
// change places with its neighbours', so that what it stores are whole sectors of a row.
#include "common/math.h"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"
#include "cuda/w4a16/api.h"
#include "cuda/w4a16/dequant.cuh"
#include "cuda/w4a16/dequant_fp4.cuh"

namespace xgemm::cuda::w4a16 {
namespace {

constexpr int kThreads = 256;        // a warp for each half strip of a unit
constexpr int kUnits = 2;            // of a block, at a time
constexpr int64_t kMaxRows = 65535;  // of a grid
constexpr uint32_t kAllLanes = 0xffffffff;

// Element i of lane j's words becomes element j of lane i's, for the 4 lanes of a column.
__device__ void transpose_words(uint32_t (&w)[4], int tig) {
  const bool odd = tig & 1, upper = tig & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {  // pairs of lanes: 2 x 2 blocks
    const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? w[i] : w[i + 1], 1);
    w[i] = odd ? other : w[i];
    w[i + 1] = odd ? w[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, upper ? w[i] : w[i + 2], 2);
    w[i] = upper ? other : w[i];
    w[i + 2] = upper ? w[i + 2] : other;
  }
}

// Eight neighbouring channels of a column, rounded.
template <typename T>
struct Piece {
  static constexpr int kWords = 8 * sizeof(T) / 4;
  uint32_t word[kWords];

  __device__ void set(int i, float low, float high) {  // channels 2 i and 2 i + 1
    if constexpr (sizeof(T) == 4) {
      word[2 * i] = __float_as_uint(low);
      word[2 * i + 1] = __float_as_uint(high);
    } else {
      word[i] = pack2<T>(low, high);
    }
  }
  __device__ void store(T* to, int64_t count, bool aligned) const {
    static_assert(kWords == 4, "16 bytes: of fp32 half a piece is stored at once");
    if (aligned && count >= 8) {
      *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i >= count) break;
      reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(word[i / 2] >> i % 2 * 16);
    }
  }
};

// What the kernel needs of a Dequantize, without divisions.
struct Params {
  const uint8_t* weight;  // the part's first row and unit
  int64_t row_bytes;
  int unit_bytes, strip_bytes;
  const uint8_t* tail;      // with group_size -1: the first row's scales
  int group_quarters_log2;  // of a unit's quarters, 32 k each, that a group has
  int zero_offset;          // from a scale to its zero point
  bool per_channel, zeros, bf16_scales;
  int64_t columns, channels, rows;
  void* dst;
  int64_t dst_row_stride;
  bool aligned;  // 16-byte stores
};

Params make_params(const Dequantize& part, int64_t item_size) {
  const w4::Layout& layout = part.weight.layout;
  const int64_t group = layout.per_channel() ? w4::kUnitK : layout.group_size;
  Params p{};
  const uint8_t* row = part.weight.data + part.column / w4::kRowColumns * layout.row_bytes();
  p.weight = row + part.channel / w4::kUnitK * layout.unit_bytes();
  p.tail = row + layout.units() * layout.unit_bytes();
  p.row_bytes = layout.row_bytes();
  p.unit_bytes = static_cast<int>(layout.unit_bytes());
  p.strip_bytes = static_cast<int>(layout.strip_bytes());
  for (int64_t quarters = group / 32; quarters > 1; quarters /= 2) ++p.group_quarters_log2;
  p.zero_offset = static_cast<int>(
      2 * (layout.per_channel() ? w4::kRowColumns : layout.groups_per_unit() * w4::kStripColumns));
  p.per_channel = layout.per_channel(), p.zeros = layout.zeros;
  p.bf16_scales = part.weight.bf16_scales;
  p.columns = part.columns, p.channels = part.channels;
  p.rows = ceil_div<int64_t>(part.columns, w4::kRowColumns);
  p.dst = part.dst, p.dst_row_stride = part.dst_row_stride;
  p.aligned =
      reinterpret_cast<uintptr_t>(part.dst) % 16 == 0 && part.dst_row_stride * item_size % 16 == 0;
  return p;
}

// A lane's share of half a strip, as it was read.
struct Raw {
  uint4 codes;
  uint16_t scale[2], zero[2];  // of columns gid and gid + 8

  // `strip`: 0 .. 3 of the unit's, `half`: 0 or 1 of the strip's.
  __device__ void load(const Params& p, int64_t row, int64_t unit, int strip, int half, int lane) {
    const uint8_t* base =
        p.weight + row * p.row_bytes + unit * p.unit_bytes + strip * p.strip_bytes;
    codes = *reinterpret_cast<const uint4*>(base + half * 512 + lane * 16);
    // After the exchange a lane has the words of 16 channels, the (lane % 4)-th: of one group.
    const int group = (half * 2 + lane % 4 / 2) >> p.group_quarters_log2;
    const uint8_t* scales = p.per_channel ? p.tail + row * p.row_bytes + strip * 32
                                          : base + w4::kStripCodeBytes + group * 32;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const uint8_t* at = scales + (lane / 4 + c * 8) * 2;
      scale[c] = *reinterpret_cast<const uint16_t*>(at);
      zero[c] = p.zeros ? *reinterpret_cast<const uint16_t*>(at + p.zero_offset) : 0;
    }
  }
};

// By pairs of lanes: an even lane gives its upper 8 channels for the lower 8 of the next lane, so
// that a store of the warp covers 32 neighbouring bytes, not 16 here and 16 there.
template <typename T>
__device__ __forceinline__ void store_pairs(const Params& p, Piece<T> (&piece)[2][2],
                                            int64_t column, int64_t channel, int lane) {
  const int gid = lane / 4, tig = lane % 4;
  const bool odd = tig & 1;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int i = 0; i < Piece<T>::kWords; ++i) {
      uint32_t &first_word = piece[c][0].word[i], &second_word = piece[c][1].word[i];
      const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? first_word : second_word, 1);
      first_word = odd ? other : first_word;
      second_word = odd ? second_word : other;
    }
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int64_t of_column = column + gid + c * 8;
    T* row = static_cast<T*>(p.dst) + of_column * p.dst_row_stride;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // piece[c][0] is now of the pair's first 16 channels, piece[c][1] of its second.
      const int64_t of_channel = channel + (tig / 2 * 2 + h) * 16 + odd * 8;
      const int64_t count = p.channels - of_channel;
      if (of_column < p.columns && count > 0) {
        piece[c][h].store(row + of_channel, count, p.aligned);
      }
    }
  }
}

// The same of fp32, where 8 channels are two stores: the four lanes of a column change places, so
// that a store covers 64 neighbouring bytes. (H200: with 16 of every 32 a store, 2.6 times as
// long.)
__device__ __forceinline__ void store_floats(const Params& p, Piece<float> (&piece)[2][2],
                                             int64_t column, int64_t channel, int lane) {
  const int gid = lane / 4, tig = lane % 4;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    uint32_t quads[4][4];  // [of 4 channels][channel]
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t words[4];
#pragma unroll
      for (int q = 0; q < 4; ++q) words[q] = piece[c][q / 2].word[q % 2 * 4 + i];
      transpose_words(words, tig);
#pragma unroll
      for (int q = 0; q < 4; ++q) quads[q][i] = words[q];
    }
    const int64_t of_column = column + gid + c * 8;
    auto* row = static_cast<uint32_t*>(p.dst) + of_column * p.dst_row_stride;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int64_t of_channel = channel + q * 16 + tig * 4, count = p.channels - of_channel;
      if (of_column >= p.columns || count <= 0) continue;
      const uint32_t (&x)[4] = quads[q];
      if (p.aligned && count >= 4) {
        *reinterpret_cast<uint4*>(row + of_channel) = make_uint4(x[0], x[1], x[2], x[3]);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) row[of_channel + i] = x[i];
      }
    }
  }
}

// Stores the half strip at (column, channel) of the part.
template <typename T, bool kFp4>
__device__ void store_half(const Params& p, const Raw& raw, int64_t column, int64_t channel,
                           int lane) {
  float scale[2], zero[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    scale[c] = scale_to_float(raw.scale[c], p.bf16_scales);
    zero[c] = p.zeros ? half_bits_to_float(raw.zero[c]) : static_cast<float>(w4::kSymmetricZero);
  }
  uint32_t words[4] = {raw.codes.x, raw.codes.y, raw.codes.z, raw.codes.w};
  transpose_words(words, lane % 4);
  // [column][lower or upper 8 of the 16 channels]; word i has channels 2 i and 2 i + 1 of each.
  Piece<T> piece[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t code[4];
    kFp4 ? dequantize_fp4_fragment<__half>(words[i], code)
         : dequantize_fragment<__half, 0>(words[i], code);
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&code[f]));
      const int c = f % 2;
      if constexpr (kFp4) {
        constexpr float kUnit = kFp4Unit<__half>;
        piece[c][f / 2].set(i, pair.x * kUnit * scale[c], pair.y * kUnit * scale[c]);
      } else {
        piece[c][f / 2].set(i, (pair.x - zero[c]) * scale[c], (pair.y - zero[c]) * scale[c]);
      }
    }
  }

  if constexpr (sizeof(T) == 4) {
    store_floats(p, piece, column, channel, lane);
  } else {
    store_pairs(p, piece, column, channel, lane);
  }
}

// A block's eight warps take units, two at a time: all of them is read before any of it is written.
template <typename T, bool kFp4>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 4 ? 3 : 0)
    dequantize_kernel(const __grid_constant__ Params p) {
  const int lane = threadIdx.x % 32, strip = threadIdx.x / 64, half = threadIdx.x / 32 % 2;
  const int64_t unit = int64_t{blockIdx.x} * kUnits;
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const int64_t column = row * w4::kRowColumns + strip * w4::kStripColumns;
    Raw raw[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if ((unit + u) * w4::kUnitK < p.channels) raw[u].load(p, row, unit + u, strip, half, lane);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int64_t channel = (unit + u) * w4::kUnitK + half * 64;
      if (channel < p.channels) store_half<T, kFp4>(p, raw[u], column, channel, lane);
    }
  }
}

template <typename T>
Status launch_dequantize(const Dequantize& part, cudaStream_t stream) {
  const Params params = make_params(part, sizeof(T));
  const int64_t blocks = ceil_div<int64_t>(part.channels, w4::kUnitK * kUnits);
  const Grid grid{.blocks = dim3(static_cast<unsigned>(blocks),
                                 static_cast<unsigned>(min(params.rows, kMaxRows))),
                  .threads = dim3(kThreads),
                  .stream = stream};
  const auto kernel = part.fp4 ? dequantize_kernel<T, true> : dequantize_kernel<T, false>;
  return launch_grid("dequantizing a packed weight", grid, kernel, params);
}

}  // namespace

Status dequantize(const Dequantize& part, cudaStream_t stream) {
  if (part.columns == 0 || part.channels == 0) return {};
  switch (part.dtype) {
    case DType::kF16:
      return launch_dequantize<__half>(part, stream);
    case DType::kBF16:
      return launch_dequantize<__nv_bfloat16>(part, stream);
    default:
      return launch_dequantize<float>(part, stream);
  }
}

}  // namespace xgemm::cuda::w4a16
