// A warp that streams over the weight: its own ring of copies, its share of every tile's K.
//
// A CTA's part of K is cut into runs of a few units. The runs of all tiles are dealt out to the
// warps in turns, so that all have about the same work whatever K is. A run's sums are one part of
// its tile's, and the parts are added in their order: the bits do not depend on who had them.
#pragma once

#include "cuda/ptx/cp_async_bulk.h"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mbarrier.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/w4a16/sm90/rows/cta.cuh"
#include "cuda/w4a16/sm90/rows/dequant.cuh"

namespace xgemm::cuda::w4a16::sm90::rows {

// A unit of a run (of the CTA's K) of a tile (of the CTA's turns).
struct Piece {
  int tile, part, unit, end;

  __device__ Piece(const Params& p, int units, int warp) : tile(0), part(warp) {
    find_run(p, units);
  }

  // Returns how many tiles further it is then, or -1 within a run.
  __device__ int advance(const Params& p, int units) {
    if (++unit < end) return -1;
    const int before = tile;
    part += p.warps;
    find_run(p, units);
    return tile - before;
  }

 private:
  __device__ void find_run(const Params& p, int units) {
    unit = part * p.run;
#pragma unroll 1
    for (; unit >= units; unit = part * p.run) part -= p.parts(units), ++tile;
    end = min(unit + p.run, units);
  }
};

// Scales and zeros of a lane's columns, gid and gid + 8 of both strips. Where a unit has several
// groups, lane (gid, tig) has those of group tig.
template <typename T, bool kFine>
struct Scales {
  uint32_t scale_bits[kTileStrips][2], zero_bits[kTileStrips][2];
  float scale[kTileStrips][2], zero[kTileStrips][2];

  __device__ void load(const Params& p, const uint8_t* stage, int lane) {
    if (p.groups == 0) {  // they come at the end
#pragma unroll
      for (int i = 0; i < 4; ++i) scale_bits[i / 2][i % 2] = p.bf16_scales ? 0x3f80 : 0x3c00;
      return;
    }
    constexpr int kGroup = w4::kStripColumns * w4::kScaleBytes;
    const int group = kFine ? min(lane % 4, p.groups - 1) : 0;
    const uint8_t* from = stage + w4::kStripCodeBytes + group * kGroup + lane / 4 * w4::kScaleBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* at = from + i / 2 * p.strip_bytes + i % 2 * (kGroup / 2);
      scale_bits[i / 2][i % 2] = *reinterpret_cast<const uint16_t*>(at);
      zero_bits[i / 2][i % 2] = 0;  // no value of the unit before is kept for it
      if (p.zeros_in_units) {
        zero_bits[i / 2][i % 2] =
            *reinterpret_cast<const uint16_t*>(at + (kFine ? p.groups * kGroup : kGroup));
      }
    }
  }

  // A zero in the terms of mma's products: those of columns gid + 8 are kUpper times as large.
  __device__ void convert(const Params& p) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = i % 2 == 0 ? 1.0f : Codes<T>::kUpper;
      scale[i / 2][i % 2] = scale_to_float(scale_bits[i / 2][i % 2], p.bf16_scales);
      zero[i / 2][i % 2] = (w4::kSymmetricZero + Codes<T>::kOffset) * factor;
      if (p.zeros_in_units) {
        const float stored = scale_to_float(zero_bits[i / 2][i % 2], false);
        zero[i / 2][i % 2] =
            Codes<T>::kOffset == 0 ? stored * factor : (stored + Codes<T>::kOffset) * factor;
      }
    }
  }
};

// kTiles: of kMmaRows rows of X. kFine: groups of fewer than 128 channels.
template <typename T, int kTiles, bool kFine>
class Stream {
 public:
  __device__ Stream(const Params& p, const Cta& cta, uint8_t* smem, int warp, int lane)
      : p_(p),
        cta_(cta),
        barriers_(*reinterpret_cast<Barriers*>(smem)),
        sums_(reinterpret_cast<float*>(smem + p.shared.sums)),
        ring_(smem + p.shared.ring + warp * p.stages * 2 * p.strip_bytes),
        full_(barriers_.ring[warp]),
        lane_(lane),
        next_(p, cta.units, warp),
        piece_(next_) {
    find_tile();
    buffer_ = piece_.tile;  // at most as many tiles as buffers are under way
    const uint32_t x = ptx::smem_address(smem + p.shared.x) + lane / 8 * 16;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      // Rows past the last read it again; their products go nowhere.
      x_[tile] = x + min(tile * kMmaRows + lane % 8, p.rows - 1) * p.x_pitch;
    }
  }

  // The first copies. The ring is the warp's own: there is nobody to wait for.
  __device__ void start() {
    if (lane_ == 0) {
#pragma unroll 1
      for (int stage = 0; stage < p_.stages; ++stage) ptx::mbarrier_init(&full_[stage], 1);
      ptx::fence_mbarrier_init();
    }
#pragma unroll 1
    for (int stage = 0; stage < p_.early_stages; ++stage) fetch(stage);
    __syncwarp();
  }

  __device__ void run() {
#pragma unroll 1
    for (int stage = p_.early_stages; stage < p_.stages; ++stage) fetch(stage);
    if (p_.x_bulk) ptx::mbarrier_wait(&barriers_.x, 0);
    int stage = 0;
    uint32_t parity = 0;
#pragma unroll 1
    while (piece_.tile < cta_.tiles) {
      multiply(stage, parity);
      if (++stage == p_.stages) stage = 0, parity ^= 1;
      const int part = piece_.part, tiles = piece_.advance(p_, cta_.units);
      if (tiles >= 0) {
        hand_over(part);
        buffer_ += tiles;
        if (buffer_ >= p_.buffers) buffer_ -= p_.buffers, buffer_parity_ ^= 1;
      }
    }
  }

 private:
  static constexpr int kQuarters = 4;  // of a unit: 32 channels, two steps of mma

  __device__ void find_tile() {
    const int tile = cta_.tile(p_, next_.tile);
    next_tile_ = p_.weight + (tile >> 1) * p_.row_bytes +
                 (tile & 1) * kTileStrips * p_.strip_bytes +
                 int64_t{cta_.first_unit} * p_.unit_bytes;
  }

  // Asks for the warp's next piece, if there is one.
  __device__ void fetch(int stage) {
    if (next_.tile >= cta_.tiles) return;
    if (lane_ == 0) {
      const int bytes = kTileStrips * p_.strip_bytes;
      ptx::mbarrier_arrive_expect_tx(&full_[stage], bytes);
      ptx::bulk_load(ring_ + stage * bytes, next_tile_ + int64_t{next_.unit} * p_.unit_bytes, bytes,
                     &full_[stage]);
    }
    if (next_.advance(p_, cta_.units) > 0) find_tile();
  }

  // Channels 32 quarter ... of the piece's X: the second operand of two mma.
  __device__ void load_x(uint32_t (&x)[kTiles][4], int quarter) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      ptx::ldmatrix_x4(x[tile], x_[tile] + piece_.unit * (w4::kUnitK * 2) + quarter * 64);
    }
  }

  // Adds the product of the next piece, and asks for another in its place.
  __device__ void multiply(int stage, uint32_t parity) {
    uint32_t x[2][kTiles][4];
    load_x(x[0], 0);
    ptx::mbarrier_wait(&full_[stage], parity);
    const uint8_t* from = ring_ + stage * kTileStrips * p_.strip_bytes;
    uint32_t codes[kTileStrips][8];
#pragma unroll
    for (int i = 0; i < 2 * kTileStrips; ++i) {
      const uint8_t* half = from + i / 2 * p_.strip_bytes + i % 2 * 512;
      const uint4 words = *reinterpret_cast<const uint4*>(half + lane_ * 16);
      uint32_t* to = codes[i / 2] + i % 2 * 4;
      to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
    }
    Scales<T, kFine> scales;
    scales.load(p_, from, lane_);
    __syncwarp();  // all lanes have read the stage
    fetch(stage);

    // Fine groups have longer code, and a loop keeps the compiler from working on both halves at
    // once, for which registers do not suffice.
    constexpr int kUnroll = kFine ? 1 : 2;
    if constexpr (kFine) scales.convert(p_);
#pragma unroll(kUnroll)
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int quarter = 2 * half + i;
        if (i == 0 || !kFine) load_x(x[1 - i], min(quarter + 1, kQuarters - 1));
        multiply_quarter(codes, x[i], i);
        if (!kFine && quarter == kQuarters - 1) scales.convert(p_);
        if (kFine || quarter == kQuarters - 1) fold(scales, quarter);
      }
      if (kFine && half == 0) load_x(x[0], 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        codes[0][i] = codes[0][4 + i], codes[1][i] = codes[1][4 + i];
      }
    }
  }

  // Adds the products of 32 channels: words 2 i and 2 i + 1 of both strips by x.
  __device__ void multiply_quarter(const uint32_t (&codes)[kTileStrips][8],
                                   const uint32_t (&x)[kTiles][4], int i) {
    constexpr uint32_t kUnits[4] = {Codes<T>::kUnits, Codes<T>::kUnits, Codes<T>::kUnits,
                                    Codes<T>::kUnits};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int strip = 0; strip < kTileStrips; ++strip) {
        uint32_t a[4];
        Codes<T>::expand(codes[strip][2 * i + step], a);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          ptx::mma_m16n8k16<T>(product_[strip][tile], a, x[tile][2 * step], x[tile][2 * step + 1]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        ptx::mma_m16n8k16<T>(x_sum_[tile], kUnits, x[tile][2 * step], x[tile][2 * step + 1]);
      }
    }
  }

  // Adds the group's products to the sums: scale (product - zero * sum of x). Both products start
  // again from 0.
  __device__ void fold(const Scales<T, kFine>& scales, int quarter) {
    // kFine: the lane of the same columns that has this group's.
    const unsigned group = static_cast<unsigned>(quarter) * p_.groups / kQuarters;
    const int from = kFine ? (lane_ & ~3) | static_cast<int>(group) : 0;
    float scale[4], zero[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      scale[j] = scales.scale[j / 2][j % 2], zero[j] = scales.zero[j / 2][j % 2];
      if constexpr (kFine) {
        scale[j] = __shfl_sync(~0u, scale[j], from);
        zero[j] = __shfl_sync(~0u, zero[j], from);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // rows 2 tig + i of X
      if (kTiles == 1 && i == 1 && p_.rows == 1) continue;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {  // columns gid and gid + 8 of both strips
          float& sum = sum_[j / 2][tile][j % 2 * 2 + i];
          const float product = product_[j / 2][tile][j % 2 * 2 + i];
          sum = fmaf(scale[j], fmaf(-zero[j], x_sum_[tile][i], product), sum);
        }
        if (!kFine && p_.groups == 0) x_total_[tile][i] += x_sum_[tile][i];
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        product_[0][tile][i] = product_[1][tile][i] = x_sum_[tile][i] = 0.0f;
      }
    }
  }

  // Leaves the sums of a run to those who add up all parts, and starts again from 0.
  __device__ void hand_over(int part) {
    const int slot = buffer_ * p_.parts(cta_.units) + part;
    float* to = sums_ + (slot * p_.rows + lane_ % 4 * 2) * kSumPitch;
    ptx::mbarrier_wait(&barriers_.sums_empty[buffer_], buffer_parity_ ^ 1);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = tile * kMmaRows + i;  // and 2 tig
        if (row + lane_ % 4 * 2 < p_.rows) {
          float* at = to + row * kSumPitch + lane_ / 4;
#pragma unroll
          for (int j = 0; j < 4; ++j) at[j * 8] = sum_[j / 2][tile][j % 2 * 2 + i];
          if (!kFine && p_.groups == 0 && lane_ < 4) at[kSumOfX] = x_total_[tile][i];
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) sum_[j / 2][tile][j % 2 * 2 + i] = 0.0f;
        x_total_[tile][i] = 0.0f;
      }
    }
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(&barriers_.sums_full[buffer_]);
  }

  const Params& p_;
  const Cta cta_;
  Barriers& barriers_;
  float* sums_;
  uint8_t* ring_;
  uint64_t* full_;
  int lane_;
  uint32_t x_[kTiles];
  Piece next_, piece_;  // to ask for, to multiply
  const uint8_t* next_tile_;
  int buffer_;  // of sums, for the tile of piece_
  uint32_t buffer_parity_ = 0;
  float product_[kTileStrips][kTiles][4] = {}, x_sum_[kTiles][4] = {};  // of the group
  float sum_[kTileStrips][kTiles][4] = {}, x_total_[kTiles][2] = {};    // of the tile
};

}  // namespace xgemm::cuda::w4a16::sm90::rows
