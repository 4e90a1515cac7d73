// Canonical codes, scales and zeros <-> the packed layout. One block a unit (64 columns x 128 k):
// the codes pass through shared memory, so that both sides move 16 bytes a thread.
#include "cuda/launch.h"
#include "cuda/shared_memory.h"
#include "cuda/w4a16/api.h"

namespace xgemm::cuda {
namespace {

using w4::Layout;

constexpr int kThreads = 256;  // one 16-byte word of codes each: 64 * 128 / 32
constexpr int kColumns = static_cast<int>(w4::kRowColumns);
constexpr int kChannels = static_cast<int>(w4::kUnitK);
constexpr int64_t kMaxBlocks = 1 << 20;

struct CodeTile {
  // 144-byte rows: 16-byte accesses stay aligned, and eight rows start in eight bank groups.
  static constexpr int kPitch = kChannels + 16;
  alignas(16) uint8_t code[kColumns * kPitch];
};

// Where thread `thread` finds its word of the unit's codes, and the codes that are in it.
struct WordOfThread {
  int strip, half, gid, tig;
  __device__ explicit WordOfThread(int thread)
      : strip(thread / 64), half(thread / 32 % 2), gid(thread % 32 / 4), tig(thread % 4) {}
  __device__ int64_t byte() const { return half * 512 + (gid * 4 + tig) * 16; }
  // Position in the tile of nibble `nibble` of word `word`: nibbles are a0 a2 a4 a6 a1 a3 a5 a7.
  __device__ int tile_index(int word, int nibble) const {
    const int column = strip * 16 + gid + (nibble % 2) * 8;
    const int channel = half * 64 + word * 16 + tig * 2 + (nibble / 2 % 2) * 8 + nibble / 4;
    return column * CodeTile::kPitch + channel;
  }
};

// Copies the unit's [64, 128] codes between `codes` and the tile, 16 bytes a thread where
// rows are aligned. `copy(tile_index, global_index, count)` moves `count` codes; outside,
// `pad(tile_index)`.
template <typename Copy, typename Pad>
__device__ void for_each_piece(const Layout& layout, const uint8_t* codes, int64_t row,
                               int64_t unit, Copy copy, Pad pad) {
  const bool vector = layout.k % 16 == 0 && reinterpret_cast<uintptr_t>(codes) % 16 == 0;
  const int step = vector ? 16 : 1;
  for (int i = threadIdx.x * step; i < kColumns * kChannels; i += kThreads * step) {
    const int column = i / kChannels, channel = i % kChannels;
    const int64_t n = row * kColumns + column, k = unit * kChannels + channel;
    const int tile_index = column * CodeTile::kPitch + channel;
    if (n < layout.n && k < layout.k) {
      copy(tile_index, n * layout.k + k, step);
    } else {
      for (int j = 0; j < step; ++j) pad(tile_index + j);
    }
  }
}

// Calls fn(column, group, byte offset of its scale) for the scales of a unit, or, with one group
// for all of K, for those at the end of a row (which the block of its last unit does).
template <typename Fn>
__device__ void for_each_scale(const Layout& layout, int64_t row, int64_t unit, Fn fn) {
  const bool tail = layout.per_channel();
  if (tail && unit != max(layout.units() - 1, int64_t{0})) return;
  const int groups = tail ? 1 : static_cast<int>(layout.groups_per_unit());
  for (int i = threadIdx.x; i < groups * kColumns; i += kThreads) {
    const int64_t column = row * kColumns + i % kColumns;
    const int64_t group = tail ? 0 : unit * groups + i / kColumns;
    fn(column, group, layout.scale_offset(column, group));
  }
}

__device__ uint16_t* half_at(uint8_t* bytes, int64_t offset) {
  return reinterpret_cast<uint16_t*>(bytes + offset);
}
__device__ uint16_t half_at(const uint8_t* bytes, int64_t offset) {
  return *reinterpret_cast<const uint16_t*>(bytes + offset);
}

__global__ void __launch_bounds__(kThreads)
    pack_kernel(Layout layout, W4Canonical weight, uint8_t* packed) {
  XGEMM_STATIC_SHARED(CodeTile, tile);
  const int64_t units = max(layout.units(), int64_t{1});  // K = 0 still has a row's tail to write
  for (int64_t block = blockIdx.x; block < layout.rows() * units; block += gridDim.x) {
    const int64_t row = block / units, unit = block % units;
    if (unit < layout.units()) {
      __syncthreads();  // the previous unit's readers are done with the tile
      for_each_piece(
          layout, weight.codes, row, unit,
          [&](int to, int64_t from, int count) {
            if (count == 16) {
              *reinterpret_cast<uint4*>(tile.code + to) =
                  *reinterpret_cast<const uint4*>(weight.codes + from);
            } else {
              tile.code[to] = weight.codes[from];
            }
          },
          [&](int to) { tile.code[to] = 0; });
      __syncthreads();
      const WordOfThread mine(threadIdx.x);
      uint32_t words[4];
      for (int j = 0; j < 4; ++j) {
        words[j] = 0;
        for (int nibble = 0; nibble < 8; ++nibble) {
          words[j] |= static_cast<uint32_t>(tile.code[mine.tile_index(j, nibble)]) << (4 * nibble);
        }
      }
      const int64_t strip = layout.strip_offset(row * kColumns + mine.strip * 16, unit);
      *reinterpret_cast<uint4*>(packed + strip + mine.byte()) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
    for_each_scale(layout, row, unit, [&](int64_t column, int64_t group, int64_t offset) {
      const bool stored = column < layout.n && group < layout.groups();
      const int64_t from = group * layout.n + column;
      *half_at(packed, offset) = stored ? weight.scales[from] : 0;
      if (layout.zeros) {
        *half_at(packed, layout.zero_offset(column, group)) = stored ? weight.zeros[from] : 0;
      }
    });
  }
}

__global__ void __launch_bounds__(kThreads)
    unpack_kernel(Layout layout, const uint8_t* packed, uint8_t* codes, uint16_t* scales,
                  uint16_t* zeros) {
  XGEMM_STATIC_SHARED(CodeTile, tile);
  for (int64_t block = blockIdx.x; block < layout.rows() * layout.units(); block += gridDim.x) {
    const int64_t row = block / layout.units(), unit = block % layout.units();
    __syncthreads();  // the previous unit's readers are done with the tile
    const WordOfThread mine(threadIdx.x);
    const int64_t strip = layout.strip_offset(row * kColumns + mine.strip * 16, unit);
    const uint4 word = *reinterpret_cast<const uint4*>(packed + strip + mine.byte());
    const uint32_t words[4] = {word.x, word.y, word.z, word.w};
    for (int j = 0; j < 4; ++j) {
      for (int nibble = 0; nibble < 8; ++nibble) {
        tile.code[mine.tile_index(j, nibble)] = words[j] >> (4 * nibble) & 15;
      }
    }
    __syncthreads();
    for_each_piece(
        layout, codes, row, unit,
        [&](int from, int64_t to, int count) {
          if (count == 16) {
            *reinterpret_cast<uint4*>(codes + to) =
                *reinterpret_cast<const uint4*>(tile.code + from);
          } else {
            codes[to] = tile.code[from];
          }
        },
        [](int) {});
    for_each_scale(layout, row, unit, [&](int64_t column, int64_t group, int64_t offset) {
      if (column >= layout.n || group >= layout.groups()) return;
      scales[group * layout.n + column] = half_at(packed, offset);
      if (layout.zeros) {
        zeros[group * layout.n + column] = half_at(packed, layout.zero_offset(column, group));
      }
    });
  }
}

// Lowers *fault to the first i in [0, count) with bad(i).
template <typename Bad>
__device__ void find_first(int64_t count, unsigned long long* fault, Bad bad) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    if (bad(i)) {
      atomicMin(fault, static_cast<unsigned long long>(i));
      return;  // this thread's later positions are all greater
    }
  }
}

__global__ void find_faults_kernel(int64_t codes, int64_t scales, W4Canonical weight,
                                   uint16_t scale_exponent, unsigned long long* faults) {
  find_first(codes, faults + 0, [&](int64_t i) { return weight.codes[i] > 15; });
  // All exponent bits set: Inf or NaN.
  find_first(scales, faults + 1,
             [&](int64_t i) { return (weight.scales[i] & scale_exponent) == scale_exponent; });
  if (weight.zeros == nullptr) return;
  find_first(scales, faults + 2, [&](int64_t i) { return (weight.zeros[i] & 0x7c00) == 0x7c00; });
}

Grid grid_of(int64_t blocks, cudaStream_t stream) {
  return {.blocks = dim3(static_cast<unsigned>(min(blocks, kMaxBlocks))),
          .threads = dim3(kThreads),
          .stream = stream};
}

}  // namespace

Status w4_find_faults(const Layout& layout, const W4Canonical& weight, bool bf16_scales,
                      unsigned long long* faults, cudaStream_t stream) {
  const int64_t codes = layout.n * layout.k, scales = layout.groups() * layout.n;
  const cudaError_t cleared = cudaMemsetAsync(faults, 0xff, 3 * sizeof(*faults), stream);
  if (cleared != cudaSuccess) return {cleared, "clearing the fault positions"};
  if (codes + scales == 0) return {};
  const int64_t blocks = ceil_div(max(codes, scales), int64_t{kThreads * 16});
  return launch_grid("pack_w4's check of codes and scales", grid_of(blocks, stream),
                     find_faults_kernel, codes, scales, weight, bf16_scales ? 0x7f80 : 0x7c00,
                     faults);
}

Status w4_pack(const Layout& layout, const W4Canonical& weight, uint8_t* packed,
               cudaStream_t stream) {
  if (layout.bytes() == 0) return {};
  const int64_t blocks = layout.rows() * max(layout.units(), int64_t{1});
  return launch_grid("pack_w4", grid_of(blocks, stream), pack_kernel, layout, weight, packed);
}

Status w4_unpack(const Layout& layout, const uint8_t* packed, uint8_t* codes, uint16_t* scales,
                 uint16_t* zeros, cudaStream_t stream) {
  const int64_t blocks = layout.rows() * layout.units();
  if (blocks == 0) return {};
  return launch_grid("unpack_w4", grid_of(blocks, stream), unpack_kernel, layout, packed, codes,
                     scales, zeros);
}

}  // namespace xgemm::cuda
