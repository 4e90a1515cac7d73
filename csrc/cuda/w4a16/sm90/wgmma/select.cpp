#include "cuda/w4a16/sm90/wgmma/select.h"

#include <algorithm>
#include <cmath>

#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/w4a16/sm90/most_clusters.h"
#include "cuda/w4a16/sm90/wgmma/tile.h"
#include "cuda/w4a16/sm90/wgmma/tma_fit.h"

namespace xgemm::cuda::w4a16::sm90::wgmma {
namespace {

using choose::Estimate;
using choose::Listing;
using choose::Scored;

struct Shape {
  int consumers, parts, rows;  // parts: warpgroups that share the K of 64 columns
  double unit_cycles;
  constexpr int columns() const { return consumers * kWarpgroupColumns; }
  constexpr int warpgroups() const { return consumers * parts; }
  constexpr bool small_m() const { return rows <= kMaxSmallM; }
  constexpr int most_sharers() const { return rows <= kMaxMediumM ? 1 : 2; }
};
#define XGEMM_W4_SMALL_M_TILE(BLOCKS, PARTS, ROWS, CYCLES) {BLOCKS, PARTS, ROWS, CYCLES},
#define XGEMM_W4_WGMMA_TILE(CONSUMERS, ROWS, CYCLES) {CONSUMERS, 1, ROWS, CYCLES},
constexpr Shape kShapes[] = {XGEMM_W4_SMALL_M_TILES(XGEMM_W4_SMALL_M_TILE) XGEMM_W4_MEDIUM_M_TILES(
    XGEMM_W4_WGMMA_TILE) XGEMM_W4_LARGE_M_TILES(XGEMM_W4_WGMMA_TILE)};
#undef XGEMM_W4_SMALL_M_TILE
#undef XGEMM_W4_WGMMA_TILE

constexpr double kLaunchUs = 3.1;
// Large products are bound by the GPU's power: 128 SMs then take no longer than 132. What cycles
// need and what power allows are added as in a norm of this degree, so that both count where they
// are close.
constexpr double kFlopsPerUs = 1049e6, kDegree = 5.021;
// Weights become operands once for all rows of a tile: as much energy as so many rows more.
constexpr double kDequantRows = 12.5;
// Sums that go through memory cost their energy; where shares begin and end anywhere, operands too,
// which neighbours read at other times. It is less where two CTAs share X.
constexpr double kPartsEnergy = 1.035, kSharesEnergy = 1.126;
constexpr double kSharedShares = 0.972, kSharedTiles = 0.99;

// These and the tiles' cycles are fitted to times on an H200, groups of 128, all near ways of a
// product by turns (one that runs behind itself finds its instructions in the cache).
// kMediumAndLargeM: 53,000 times of 4,800 products of 1,000 layers, M from 65 to 5033. kSmallM,
// without the power limit: as those of skinny/select.cpp.
struct Costs {
  double bytes_per_us;             // from memory, by all SMs
  double start_us;                 // until a CTA has operands
  double tile, tile_per_row;       // beside its units: the pipeline runs dry, D is stored
  double exchange, exchange_byte;  // where CTAs of a cluster share K
  double four = 0;                 // more where four of them do
  double leave, leave_byte;        // of sums that are left in memory for others
  double cluster_us = 0;           // until one that shares X has operands
  double splitting;                // of a unit where CTAs share K: fewer stages
};
constexpr Costs kMediumAndLargeM{.bytes_per_us = 4.2e6,
                                 .start_us = 3.093,
                                 .tile = 2446,
                                 .tile_per_row = 1.947,
                                 .exchange = 2.7,
                                 .exchange_byte = 0.04963,
                                 .four = 1747,
                                 .leave = 2150,
                                 .leave_byte = 0.02002,
                                 .cluster_us = 0.3,
                                 .splitting = 1.003};
constexpr Costs kSmallM{.bytes_per_us = 3.394e6,
                        .start_us = 3.327,
                        .tile = 160,
                        .tile_per_row = 5.4,
                        .exchange = 567,
                        .exchange_byte = 0.0215,
                        .four = 190,
                        .leave = 4800,
                        .leave_byte = 0.0135,
                        .splitting = 0.976};
// Where shares begin and end anywhere, neighbours read the same of X at other times, from memory
// again what L2 has not kept: of an X of so many bytes all of it.
constexpr double kNotKeptBytes = 29.4e6;
// What 32 rows gain by sharing K, all M pay for where bits must not depend on it. (H200, 512 rows:
// 28672x4096 201 us by whole tiles, 238 by shares; 2048x2048 19 us in halves of K, 23 in quarters.)
constexpr double kInvariantSharing = 1.03;
// By how much of it a unit takes longer in other formats than the commonest. (H200, 7 layers, 16 to
// 160 rows, groups of 128, 64 and 32 and one for each column. Foreign scales, of the 16-bit type
// that the activations do not have, make each group a step of its own: 4 layers.) Larger tiles take
// 1.01 times as long, with groups of 32 and zeros 1.12.
struct FormatCosts {
  double other, zeros, zeros_of_groups;                // any; zero points of one, of several groups
  double foreign, foreign_group, foreign_group_zeros;  // for each group more; for each one's zeros
};
constexpr FormatCosts kSmallMFormats{0.1, 0.08, 0.2, 0.1, 0.25, 0.08};
constexpr FormatCosts kMediumMFormats{0.02, 0.14, 0.14, 0.1, 0.1, 0.1};
constexpr double kLargeMZeros = 0.03;

// Of copying x so that TMA can read it.
constexpr double kCopyLaunchUs = 2.5, kCopyBytesPerUs = 3e6;

constexpr int64_t kMaxExtent = INT32_MAX - 1024, kMaxUnits = INT32_MAX;

struct Candidate {
  Shape shape;
  int sharers, splits;
  // Clusters that take equal shares of all tiles' K; 0: they take whole tiles.
  int64_t shares = 0;
};

class Model {
 public:
  using Candidate = wgmma::Candidate;

  Model(const Problem& p, int64_t m, const DeviceInfo& device)
      : p_(p),
        layout_(p.weight.layout),
        foreign_scales_(p.weight.bf16_scales != (p.dtype == DType::kBF16)),
        plain_(is_plain(p)),
        batch_invariant_(p.batch_invariant),
        m_(m),
        device_(device),
        gpu_(choose::constants_of(device)) {}

  template <typename Search>
  void candidates(Search& search) const {
    for (const Shape& shape : kShapes) {
      if (!shape.small_m() && m_ <= kMaxSmallM) continue;  // never the best
      if (foreign_scales_ && !takes_foreign_scales(shape.rows)) continue;
      for (int sharers = 1; sharers <= shape.most_sharers(); ++sharers) {
        for (int splits = 1; splits <= kMaxSplits; splits *= 2) {
          consider({shape, sharers, splits}, search);
        }
        of_stream_k({shape, sharers, 1}, search);
      }
    }
  }

  Choice choice(const Candidate& c) const {
    const auto& [shape, sharers, splits, shares] = c;
    const bool stream_k = shares > 0;
    const int64_t tiles = tiles_of(c);
    const int64_t waves = ceil_div<int64_t>(tiles, most_clusters(device_, sharers * splits));
    const Config config = {.consumers = shape.consumers,
                           .parts = shape.parts,
                           .rows = shape.rows,
                           .sharers = sharers,
                           .splits = splits,
                           // As few as need the same number of waves: less power, the same time.
                           .clusters = static_cast<int>(stream_k ? shares : ceil_div(tiles, waves)),
                           .stream_k = stream_k,
                           .by_rows = launches_of(c) > 1,
                           .copy_x = !x_fits_tma(p_)};
    int64_t workspace = copy_bytes();
    if (stream_k) {
      workspace += stream_k_workspace(shape.rows, shape.columns(), config.ctas()).bytes();
    }
    return {.config = config,
            .workspace_bytes = workspace,
            .reason = "the weight dequantized in registers: fewest cycles over the SMs"};
  }

  // Of X, where TMA cannot read it as it lies.
  int64_t copy_bytes() const {
    return x_fits_tma(p_) ? 0 : p_.m * round_up<int64_t>(layout_.k, 8) * 2;
  }
  double copy_us() const {
    if (x_fits_tma(p_)) return 0;
    return kCopyLaunchUs +
           2.0 * static_cast<double>(copy_bytes()) / (kCopyBytesPerUs * gpu_.dram_speed);
  }

  int64_t tiles_of(const Candidate& c) const {
    const int64_t groups = ceil_div<int64_t>(layout_.n, c.shape.columns() * c.sharers);
    return launches_of(c) > 1 ? groups : ceil_div<int64_t>(m_, c.shape.rows) * groups;
  }

  Estimate estimate(const Candidate& c, double limit) const;

 protected:
  // With shares a row's bits depend on the number of tiles: those of more rows are dealt out alone.
  int64_t launches_of(const Candidate& c) const {
    return batch_invariant_ && c.shares > 0 ? ceil_div<int64_t>(m_, c.shape.rows) : 1;
  }

  // All clusters that there are, or as many as share a tile and nothing else: then a tile has fewer
  // parts, which one CTA adds up.
  template <typename Search>
  void of_stream_k(Candidate c, Search& search) const {
    const int64_t most = most_clusters(device_, c.sharers);
    c.shares = most;
    const int64_t tiles = tiles_of(c);
    if (tiles * layout_.units() < most || tiles * layout_.units() > kMaxUnits) return;
    consider(c, search);
    if (c.shape.small_m()) return;
    constexpr int64_t kMaxParts = 8;
    for (int64_t parts = 2; parts <= kMaxParts && tiles * parts <= most; ++parts) {
      if (layout_.units() % parts != 0 || tiles * (parts + 1) <= most / 2) continue;
      c.shares = tiles * parts;
      consider(c, search);
    }
  }

  template <typename Search>
  void consider(const Candidate& c, Search& search) const {
    const auto [shape, sharers, splits, shares] = c;
    if (splits > 1 && (!may_split(shape.consumers, shape.rows) || layout_.units() < splits)) return;
    if (most_clusters(device_, sharers * splits) == 0 || tiles_of(c) > UINT32_MAX / 2) return;
    search.consider(c);
  }

  // Cycles of the busiest SM, and of what they consist; the energy of a product's operands, of
  // whole tiles' in waves.
  struct Cycles {
    double mma = 0, tiles = 0, exchange = 0, energy = 1.0;
    bool anywhere = false;  // shares begin and end within tiles
    double all = 0;
  };

  // How much longer than in the commonest format a unit takes.
  double format_factor(const Shape& shape) const {
    const int64_t groups = layout_.groups_per_unit();
    const auto more = static_cast<double>(std::max<int64_t>(groups, 1) - 1);
    if (shape.rows > kMaxMediumM) return 1.0 + (layout_.zeros ? kLargeMZeros * (more + 1) : 0.0);
    const FormatCosts& costs = shape.small_m() ? kSmallMFormats : kMediumMFormats;
    // Small-M kernels for the commonest format read scales of either type.
    if (foreign_scales_ && !(plain_ && shape.small_m())) {
      return 1.0 + costs.foreign + costs.foreign_group * more +
             (layout_.zeros ? costs.foreign_group_zeros * (more + 1) : 0.0);
    }
    if (groups == 1 && !layout_.zeros) return 1.0;
    const double zeros = groups > 1 ? costs.zeros_of_groups : costs.zeros;
    return 1.0 + costs.other + (layout_.zeros ? zeros : 0.0);
  }

  const Costs& costs_of(const Shape& shape) const {
    return shape.small_m() ? kSmallM : kMediumAndLargeM;
  }

  // Of reading X from memory for all columns of tiles.
  double x_again_us(const Shape& shape, int sharers) const {
    const double bytes = 2.0 * static_cast<double>(m_) * static_cast<double>(layout_.k);
    const auto groups =
        static_cast<double>(ceil_div<int64_t>(layout_.n, shape.columns() * sharers));
    return std::min(bytes / kNotKeptBytes, 1.0) * bytes * groups /
           (kMediumAndLargeM.bytes_per_us * gpu_.dram_speed);
  }

  Cycles shared_cycles(const Candidate& c, double tile, double unit_cycles) const;
  Cycles wave_cycles(const Candidate& c, double tile, double unit_cycles) const;

  const Problem& p_;
  const w4::Layout& layout_;
  bool foreign_scales_, plain_, batch_invariant_;
  int64_t m_;
  const DeviceInfo& device_;
  const choose::DeviceConstants& gpu_;
};

// CTAs that take equal shares of all tiles' K.
Model::Cycles Model::shared_cycles(const Candidate& c, double tile, double unit_cycles) const {
  const auto [shape, sharers, splits, shares] = c;
  const Costs& costs = costs_of(shape);
  const int64_t tiles = tiles_of(c);
  const double sent = 4.0 * shape.columns() * shape.rows;
  const int64_t share = round_up<int64_t>(ceil_div(tiles * layout_.units(), shares), shape.parts);
  const bool within_tiles =
      !shape.small_m() && share * shares == tiles * layout_.units() && layout_.units() % share == 0;
  const double segments =
      within_tiles ? 1.0 : static_cast<double>(ceil_div(share, layout_.units()) + 1);
  // Of a tile, that one CTA adds to its own.
  const auto parts = static_cast<double>(ceil_div(layout_.units(), share) - within_tiles);
  const int lead =
      lead_of(shape.consumers, shape.rows, layout_.units(), tiles * layout_.units(), shares);
  const double own = static_cast<double>(share) + lead -
                     static_cast<double>(share * lead) / static_cast<double>(layout_.units());
  Cycles cycles{
      .mma = own * unit_cycles,
      .tiles = segments * tile,
      .exchange = costs.leave + costs.leave_byte * sent * parts,
      .energy = within_tiles ? kPartsEnergy : kSharesEnergy * (sharers > 1 ? kSharedShares : 1.0),
      .anywhere = !within_tiles};
  cycles.all = cycles.mma + cycles.tiles + costs.leave + costs.leave_byte * sent * parts;
  return cycles;
}

// Clusters that take whole tiles, wave by wave.
Model::Cycles Model::wave_cycles(const Candidate& c, double tile, double unit_cycles) const {
  const auto [shape, sharers, splits, shares] = c;
  const Costs& costs = costs_of(shape);
  const double sent = 4.0 * shape.columns() * shape.rows;
  const auto waves =
      static_cast<double>(ceil_div<int64_t>(tiles_of(c), most_clusters(device_, sharers * splits)));
  const auto units = static_cast<double>(
      round_up<int64_t>(ceil_div<int64_t>(layout_.units(), splits), shape.parts));
  const double exchange =
      splits > 1 ? costs.exchange + costs.exchange_byte * sent + (splits > 2 ? costs.four : 0.0)
                 : 0.0;
  return {.mma = waves * units * unit_cycles,
          .tiles = waves * tile,
          .exchange = waves * exchange,
          .energy = sharers > 1 ? kSharedTiles : 1.0,
          .all = waves * (units * unit_cycles + tile + exchange)};
}

Estimate Model::estimate(const Candidate& c, double limit) const {
  const auto [shape, sharers, splits, shares] = c;
  const Costs& costs = costs_of(shape);
  const double tile = costs.tile + costs.tile_per_row * shape.rows;
  const double unit_cycles =
      shape.unit_cycles * (splits > 1 ? costs.splitting : 1.0) * format_factor(shape);
  const Cycles cycles =
      shares > 0 ? shared_cycles(c, tile, unit_cycles) : wave_cycles(c, tile, unit_cycles);
  const double again_us = cycles.anywhere && m_ > kMaxSmallM ? x_again_us(shape, sharers) : 0.0;
  const double memory_us =
      static_cast<double>(layout_.bytes()) / (costs.bytes_per_us * gpu_.dram_speed) + again_us;
  double busy_us = cycles.all / gpu_.mma_cycles_per_us, power_us = 0;
  if (!shape.small_m()) {
    const double flops = 2.0 * static_cast<double>(round_up<int64_t>(m_, shape.rows)) *
                         static_cast<double>(layout_.rows() * kWarpgroupColumns) *
                         static_cast<double>(layout_.k);
    power_us = flops / (kFlopsPerUs * gpu_.all_sms_speed) * cycles.energy *
               (1.0 + kDequantRows / shape.rows);
    if (kLaunchUs + std::max(busy_us, power_us) >= limit) return {};  // spares the powers
    busy_us = std::pow(
        std::pow(busy_us, kDegree) + std::pow(power_us, kDegree) + std::pow(again_us, kDegree),
        1 / kDegree);
  }
  const double first_us = costs.start_us + (sharers > 1 ? costs.cluster_us : 0.0);
  const double one_us = kLaunchUs + first_us + std::max(busy_us, memory_us);
  const bool shares_k = shares > 0 || splits > 2;
  const auto launches = static_cast<double>(launches_of(c));
  const double us = one_us * launches * (batch_invariant_ && shares_k ? kInvariantSharing : 1.0);
  const auto of_cycles = [&](double count) { return launches * count / gpu_.mma_cycles_per_us; };
  return {.us = us + copy_us(),
          .parts = {.launch = launches * kLaunchUs,
                    .first_bytes = launches * first_us,
                    .dram = launches * memory_us,
                    .mma = of_cycles(cycles.mma),
                    .power = power_us,
                    .exchange = of_cycles(cycles.exchange),
                    .epilogue = of_cycles(cycles.tiles),
                    .copies = copy_us()}};
}

// Only ways that add up a row's products in one order, whatever M is: that of `like`, or any that
// could be such an order where there is none.
class InvariantModel : public Model {
 public:
  InvariantModel(const Problem& p, int64_t m, const DeviceInfo& device, const Candidate* like)
      : Model(p, m, device), like_(like) {}

  template <typename Search>
  void candidates(Search& search) const {
    for (const Shape& shape : kShapes) {
      if (!shape.small_m() || !has_most_rows(shape.parts)) continue;
      if (like_ != nullptr && shape.parts != like_->shape.parts) continue;
      for (int splits = 1; splits <= kMaxSplits; splits *= 2) {
        if (like_ != nullptr && (like_->shares > 0 || splits != like_->splits)) continue;
        consider({shape, 1, splits}, search);
      }
      // Shares begin and end where they do for 32 rows if tiles have as many columns.
      if (like_ == nullptr || (like_->shares > 0 && shape.consumers == like_->shape.consumers)) {
        of_stream_k({shape, 1, 1}, search);
      }
    }
  }

 private:
  // Many rows shall find large tiles.
  static bool has_most_rows(int parts) {
    return std::ranges::any_of(kShapes, [parts](const Shape& shape) {
      return shape.parts == parts && shape.rows == kMaxSmallM;
    });
  }

  const Candidate* like_;
};

}  // namespace

std::optional<Scored<Choice>> select(const Problem& p, const DeviceInfo& device,
                                     Listing<Choice>* listing) {
  const w4::Layout& layout = p.weight.layout;
  const bool takes_type = p.dtype == DType::kF16 || p.dtype == DType::kBF16;
  if (device.capability != 90 || !takes_type) return std::nullopt;
  if (p.m == 0 || layout.n == 0 || layout.k == 0) return std::nullopt;
  if (p.m > kMaxExtent || layout.n > kMaxExtent || layout.k > kMaxExtent) return std::nullopt;
  if (!p.batch_invariant) return choose::pick<Choice>(Model(p, p.m, device), listing);
  // How K is shared decides a row's bits: where they must not depend on M, it is as for few rows.
  constexpr int64_t kInvariantRows = 32;
  const auto order = choose::best_of<Choice>(InvariantModel(p, kInvariantRows, device, nullptr));
  if (!order) return std::nullopt;
  return choose::pick<Choice>(InvariantModel(p, p.m, device, &order->candidate), listing);
}

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
