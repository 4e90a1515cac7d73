// A warp that streams over the weight: its own part of the CTA's K, its own pipeline of copies.
//
// It takes the same units of every tile, so that of X it needs its own channels only, and waits for
// no other warp: not for X, not for a place in the pipeline, and for those who add up the warps'
// sums only where they are a whole tile behind.
#pragma once

#include "cuda/ptx/bulk_load_policy.h"
#include "cuda/ptx/elect.h"
#include "cuda/ptx/group_arrive.h"
#include "cuda/ptx/ldmatrix.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/ptx/opaque.h"
#include "cuda/tile/layout_index.h"
#include "cuda/tile/pipeline_state.cuh"
#include "cuda/w4a16/sm90/skinny/cta.cuh"
#include "cuda/w4a16/sm90/skinny/dequant.cuh"
#include "cuda/w4a16/sm90/skinny/format.cuh"

namespace xgemm::cuda::w4a16::sm90::skinny {

// A warp's piece of a wave's tile.
template <Format kFormat>
__device__ __forceinline__ const uint8_t* piece_of(const Params& p, const Cta& cta, int wave,
                                                   int unit) {
  const Sizes<kFormat> sizes(p);
  const int strip = cta.strip(p, wave);
  return p.weight + (strip >> 2) * p.row_bytes + (strip & 3) * sizes.strip +
         int64_t{cta.first_unit + unit} * sizes.unit;
}

// Asks for a warp's first piece. The pipeline is the warp's own: there is nobody to wait for but
// the kernels before this one.
template <Format kFormat, int kStrips>
__device__ __forceinline__ void ask_piece(const Params& p, const Cta& cta, const Share& share,
                                          uint8_t* smem, int warp) {
  uint64_t* full = reinterpret_cast<Barriers*>(smem)->full[warp];
  if (!ptx::elect_one()) return;
  ptx::mbarrier_init(full, 1);
  ptx::fence_mbarrier_init();
  ptx::griddep_wait();
  if (share.units > 0) {
    const Sizes<kFormat> sizes(p);
    const int bytes = cta.strips(p, 0) * sizes.strip;
    ptx::mbarrier_arrive_expect_tx(full, bytes);
    ptx::bulk_load(smem + p.shared.pipeline + warp * p.stages * (kStrips * sizes.strip),
                   piece_of<kFormat>(p, cta, 0, share.first_unit), bytes, full, ptx::kEvictFirst);
  }
#pragma unroll 1
  for (int stage = 1; stage < p.stages; ++stage) ptx::mbarrier_init(&full[stage], 1);
  ptx::fence_mbarrier_init();
}

// Units whose channels of X a warp takes before the others': as many as its lanes ask for at once.
// It can begin with them while the others come, which with 8 rows is as long as the first weights
// take.
inline constexpr int kFirstUnits = 2;
static_assert(kFirstUnits * w4::kUnitK == 32 * 8);

// That, and for the warp's channels of X.
template <int kTiles, Format kFormat, int kStrips>
__device__ __forceinline__ void ask_early(const Params& p, const Cta& cta, const Share& share,
                                          uint8_t* smem, int warp, int lane) {
  const bool piece_first = kTiles == 1 && p.rows <= kPieceFirstRows;
  if (piece_first) ask_piece<kFormat, kStrips>(p, cta, share, smem, warp);
  ptx::griddep_wait();
  const int first_units = min(share.units, kFirstUnits);
#pragma unroll 1
  for (int part = 0; part < 2; ++part) {
    const int unit = share.first_unit + (part == 0 ? 0 : first_units);
    if (p.x_vectors) {
      copy_x(p, smem + p.shared.x + unit * (w4::kUnitK * 2), (cta.first_unit + unit) * w4::kUnitK,
             (part == 0 ? first_units : share.units - first_units) * w4::kUnitK, lane);
    }
    if (part == 0 && !piece_first) ask_piece<kFormat, kStrips>(p, cta, share, smem, warp);
    __syncwarp();
  }
}

// kTiles: of kMmaRows rows of X.
template <typename T, int kTiles, Format kFormat, int kStrips>
class Stream {
  static constexpr bool kFine = kFormat == Format::kFine;

 public:
  __device__ Stream(const Params& p, const Cta& cta, const Share& share, uint8_t* smem, int warp,
                    int lane)
      : p_(p),
        cta_(cta),
        barriers_(*reinterpret_cast<Barriers*>(smem)),
        smem_(smem),
        sizes_(p),
        stage_bytes_(kStrips * sizes_.strip),
        pipeline_(smem + p.shared.pipeline + warp * p.stages * stage_bytes_),
        full_(barriers_.full[warp]),
        warp_(warp),
        lane_(lane),
        units_(ptx::opaque(share.units)),
        first_unit_(ptx::opaque(share.first_unit)),
        units_left_(units_) {
    if (units_ == 0) asked_tiles_ = cta.tiles;  // nothing at all
    find_tile();
    advance();  // past the piece that was asked for early
  }

  // Asks for what ask_early() has left.
  __device__ void start() {
    if (!p_.x_vectors) {
      gather_x(p_, smem_ + p_.shared.x + first_unit_ * (w4::kUnitK * 2),
               (cta_.first_unit + first_unit_) * w4::kUnitK, units_ * w4::kUnitK, lane_);
    }
#pragma unroll 1
    for (int stage = 1; stage < p_.stages; ++stage) fetch(stage);
  }

  __device__ void run() {
    const uint32_t x =
        ptx::smem_address(smem_ + p_.shared.x) + lane_ / 8 * 16 + first_unit_ * (w4::kUnitK * 2);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      // Rows past the last read it again; their products go nowhere.
      x_[tile] = x + min(tile * kMmaRows + lane_ % 8, p_.rows - 1) * p_.x_pitch;
    }
    x_sums_ = reinterpret_cast<float2*>(smem_ + p_.shared.x_sums) +
              first_unit_ * (kSumsOfUnit * kTiles * 4) + lane_ % 4;

    const Handover handover = find_handover();
    DynamicPipelineState piece{p_.stages}, sums{.stages = p_.buffers, .parity = 1};
    int units_of_x = kInParts ? 0 : take_x(0);
#pragma unroll 1
    for (int wave = 0; wave < cta_.tiles; ++wave) {
#pragma unroll 1
      for (int unit = 0; unit < units_; ++unit) {
        if (kInParts && unit == units_of_x) units_of_x = take_x(unit);
        multiply(unit, piece.stage, piece.parity);
        piece.advance();
      }
      hand_over(handover, sums.stage, sums.parity);
      sums.advance();
    }
  }

 private:
  static constexpr int kQuarters = 4;                        // of a unit: 32 channels, two mma
  static constexpr int kSumsOfUnit = kFine ? kQuarters : 1;  // of X

  // Where the warp's first piece of the next tile to ask for lies.
  __device__ void find_tile() {
    src_ = piece_of<kFormat>(p_, cta_, asked_tiles_, first_unit_);
    bytes_ = cta_.strips(p_, asked_tiles_) * sizes_.strip;
  }
  __device__ void advance() {
    src_ += sizes_.unit;
    if (--units_left_ <= 0) [[unlikely]] {
      units_left_ = units_, ++asked_tiles_;
      find_tile();
    }
  }

  // Asks for the warp's next piece, if there is one. All but the copy is done by all lanes alike.
  __device__ void fetch(int stage) {
    if (asked_tiles_ >= cta_.tiles) return;
    if (ptx::elect_one()) {
      ptx::mbarrier_arrive_expect_tx(&full_[stage], bytes_);
      // Read once: it need not push anything out of L2.
      ptx::bulk_load(pipeline_ + stage * stage_bytes_, src_, bytes_, &full_[stage],
                     ptx::kEvictFirst);
    }
    advance();
  }

  // Channels 32 quarter ... of a unit of X: the second operand of two mma.
  __device__ void load_x(uint32_t (&x)[kTiles][4], int unit, int quarter) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      ptx::ldmatrix_x4(x[tile], x_[tile] + unit * (w4::kUnitK * 2) + quarter * 64);
    }
  }

  // More rows leave no registers for X in parts, nor for what can be known early.
  static constexpr bool kInParts = kTiles == 1;

  // Waits for X of the first units, or of all others from `first` on, and sums it; returns how many
  // units' X is there then.
  __device__ int take_x(int first) {
    int end = units_;
    if (kInParts && first == 0) {
      ptx::cp_async_wait_group<1>();
      end = min(units_, kFirstUnits);
    } else {
      ptx::cp_async_wait_group<0>();
    }
    __syncwarp();
    sum_x(first, end);
    return end;
  }

  // What zero points are multiplied by: the sums of X over a group, of rows 2 tig and 2 tig + 1,
  // by an mma against ones. Weights are still on their way.
  __device__ void sum_x(int first, int end) {
    constexpr uint32_t kUnits[4] = {Codes<T>::kUnits, Codes<T>::kUnits, Codes<T>::kUnits,
                                    Codes<T>::kUnits};
    float2* to = x_sums_ + first * (kSumsOfUnit * kTiles * 4);
#pragma unroll 1
    for (int unit = first; unit < end; ++unit) {
      // A sum of each quarter, so that no mma waits for more than one other.
      float sum[kQuarters][kTiles][4] = {};
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        uint32_t x[kTiles][4];
        load_x(x, unit, quarter);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          ptx::mma_m16n8k16<T>(sum[quarter][tile], kUnits, x[tile][0], x[tile][1]);
          ptx::mma_m16n8k16<T>(sum[quarter][tile], kUnits, x[tile][2], x[tile][3]);
        }
      }
#pragma unroll
      for (int part = 0; part < kSumsOfUnit; ++part) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile, to += 4) {
          float2 total = {sum[part][tile][0], sum[part][tile][1]};
          if constexpr (!kFine) {
#pragma unroll
            for (int i = 1; i < kQuarters; ++i) {
              total.x += sum[i][tile][0], total.y += sum[i][tile][1];
            }
          }
          if (lane_ < 4) *to = total;
          x_total_[tile][0] += total.x, x_total_[tile][1] += total.y;
        }
      }
    }
    __syncwarp();
  }

  // Adds the product of the next piece, and asks for another in its place.
  __device__ void multiply(int unit, int stage, uint32_t parity) {
    constexpr int kPasses = kStrips / kPassStrips;
    const uint8_t* from = pipeline_ + stage * stage_bytes_;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass, from += kPassStrips * sizes_.strip) {
      uint32_t x[2][kTiles][4];
      load_x(x[0], unit, 0);
      if (pass == 0) ptx::mbarrier_wait(&full_[stage], parity);
      uint32_t codes[kPassStrips][8];
#pragma unroll
      for (int i = 0; i < 2 * kPassStrips; ++i) {
        const uint8_t* half = from + i / 2 * sizes_.strip + i % 2 * 512;
        const uint4 words = *reinterpret_cast<const uint4*>(half + lane_ * 16);
        uint32_t* to = codes[i / 2] + i % 2 * 4;
        to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
      }
      Scales<T, kFormat> scales;
      scales.load(p_, from, lane_);
      if (pass == kPasses - 1) {
        __syncwarp();  // all lanes have read the stage
        fetch(stage);
      }
      scales.convert(p_);
      multiply_strips(pass * kPassStrips, unit, codes, scales, x);
    }
  }

  // Of strips `first` ... of the tile; x[0] has the first quarter of the unit.
  __device__ __forceinline__ void multiply_strips(int first_strip, int unit,
                                                  const uint32_t (&codes)[kPassStrips][8],
                                                  const Scales<T, kFormat>& scales,
                                                  uint32_t (&x)[2][kTiles][4]) {
    // With few products to sum, two sums of each keep a warp from waiting for its own results.
    constexpr int kChains = kTiles == 1 && !kFine ? 2 : 1;
    float product[kChains][kPassStrips][kTiles][4] = {};
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const bool first = kFine || quarter == 0, last = kFine || quarter == kQuarters - 1;
      if (quarter + 1 < kQuarters) load_x(x[(quarter + 1) % 2], unit, quarter + 1);
      const Scales<T, kFormat> own = of_quarter(scales, quarter);
      if (first) start_products(product[0], own, unit * kSumsOfUnit + (kFine ? quarter : 0));
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int strip = 0; strip < kPassStrips; ++strip) {
          uint32_t a[4];
          Codes<T>::template expand<kShared<T, kFormat>>(codes[strip][2 * quarter + step], a);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            ptx::mma_m16n8k16<T>(product[step % kChains][strip][tile], a,
                                 x[quarter % 2][tile][2 * step],
                                 x[quarter % 2][tile][2 * step + 1]);
          }
        }
      }
      if (!last) continue;
      if constexpr (kChains == 2) add_products(product[0], product[1]);
      fold(first_strip, product[0], own);
    }
  }

  // kFine: from the lane of the same columns that has this group's.
  __device__ Scales<T, kFormat> of_quarter(const Scales<T, kFormat>& all, int quarter) const {
    Scales<T, kFormat> own = all;
    if constexpr (kFine) {
      const unsigned group = static_cast<unsigned>(quarter) * p_.groups / kQuarters;
      const int from = (lane_ & ~3) | static_cast<int>(group);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        own.scale[j / 2][j % 2] = __shfl_sync(~0u, all.scale[j / 2][j % 2], from);
      }
      if (p_.zeros_in_units) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          own.zero[j / 2][j % 2] = __shfl_sync(~0u, all.zero[j / 2][j % 2], from);
        }
      }
    }
    return own;
  }

  // A group's products start from what its zero points make of all of it.
  __device__ void start_products(float (&product)[kPassStrips][kTiles][4],
                                 const Scales<T, kFormat>& scales, int group) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float2 sum = x_sums_[(group * kTiles + tile) * 4];
#pragma unroll
      for (int strip = 0; strip < kPassStrips; ++strip) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {  // columns gid and gid + 8
          product[strip][tile][2 * j] = scales.zero[strip][j] * sum.x;
          product[strip][tile][2 * j + 1] = scales.zero[strip][j] * sum.y;
        }
      }
    }
  }

  __device__ static void add_products(float (&to)[kPassStrips][kTiles][4],
                                      const float (&from)[kPassStrips][kTiles][4]) {
#pragma unroll
    for (int strip = 0; strip < kPassStrips; ++strip) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[strip][tile][i] += from[strip][tile][i];
      }
    }
  }

  // Adds a group's products to the sums of strips `first` ...
  __device__ void fold(int first, const float (&product)[kPassStrips][kTiles][4],
                       const Scales<T, kFormat>& scales) {
#pragma unroll
    for (int strip = 0; strip < kPassStrips; ++strip) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float own = product[strip][tile][i];
          if (kShared<T, kFormat> && i >= 2) own -= product[strip][tile][i - 2];
          float& sum = sum_[first + strip][tile][i];
          sum = fmaf(scales.scale[strip][i / 2], own, sum);
        }
      }
    }
  }

  // Where a lane leaves a tile's sums: floats of shared memory from `at` on in the first buffer,
  // and `buffer` further in the next one; so many rows from its first one on exist. Known before
  // the last sums are, behind which nothing hides an instruction.
  struct Handover {
    int at, buffer, rows;
  };
  __device__ Handover find_handover() const {
    const layout::Place first = layout::fragment_place(16, 8, lane_, 0);  // of D^T
    const int row = first.column;
    const int at = p_.shared.sums / static_cast<int>(sizeof(float)) +
                   (warp_ * p_.rows + row) * sum_pitch(kStrips) + first.row;
    return {ptx::opaque(at), ptx::opaque(p_.warps * p_.rows * sum_pitch(kStrips)),
            ptx::opaque(p_.rows - row)};
  }

  // Leaves the sums of a tile to those who add up all warps', and starts again from 0.
  __device__ void hand_over(const Handover& known, int buffer, uint32_t parity) {
    const Handover place = kInParts ? known : find_handover();
    float* to = reinterpret_cast<float*>(smem_) + (place.at + buffer * place.buffer);
    ptx::mbarrier_wait(&barriers_.sums_empty[buffer], parity);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = tile * kMmaRows + i;
        if (row < place.rows) {
          float* at = to + row * sum_pitch(kStrips);
#pragma unroll
          for (int j = 0; j < 2 * kStrips; ++j) at[j * 8] = sum_[j / 2][tile][j % 2 * 2 + i];
          if (kFormat == Format::kOneGroup && p_.groups == 0 && lane_ < 4)
            at[kStrips * w4::kStripColumns] = x_total_[tile][i];
        }
#pragma unroll
        for (int j = 0; j < 2 * kStrips; ++j) sum_[j / 2][tile][j % 2 * 2 + i] = 0.0f;
      }
    }
    __syncwarp();
    if (ptx::kAllArrive || lane_ == 0) ptx::mbarrier_arrive(&barriers_.sums_full[buffer]);
  }

  const Params& p_;
  const Cta& cta_;
  Barriers& barriers_;
  uint8_t* smem_;
  Sizes<kFormat> sizes_;
  int stage_bytes_;
  uint8_t* pipeline_;
  uint64_t* full_;
  int warp_, lane_;
  int units_, first_unit_;  // of the CTA's K
  // To ask for: units of a tile, after those of the tiles before; a piece's source and size.
  int units_left_, asked_tiles_ = 0;
  const uint8_t* src_;
  int bytes_;
  uint32_t x_[kTiles];
  float2* x_sums_ = nullptr;
  float sum_[kStrips][kTiles][4] = {}, x_total_[kTiles][2] = {};
};

}  // namespace xgemm::cuda::w4a16::sm90::skinny
