// The ways to cut a problem, as the engine scores them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "cuda/choose/engine.h"
#include "cuda/reduce/cost.h"
#include "cuda/reduce/view.h"

namespace xgemm::cuda::reduce {

struct Candidate {
  Kernel kernel;
  Cut cut;
  int cluster = 1;
  bool mail = false;
  int collectors = 0;
  double meeting_us = 0;  // of the pieces
};

// After how many 16-byte loads of `vector` elements rows at this stride begin equally far in one.
inline int64_t period_of(int64_t stride, int64_t vector) {
  return stride / std::gcd(stride, vector);
}

inline const char* reason_of(const Config& config) {
  const bool whole = config.pieces == 1, clusters = config.cluster > 1;
  switch (config.kernel) {
    case Kernel::kRows:
    case Kernel::kRuns:
      return whole      ? "rows: a block each"
             : clusters ? "rows: a cluster each"
                        : "few long rows: in pieces";
    case Kernel::kColumns:
    case Kernel::kShifted:
      return whole ? "columns" : clusters ? "columns: a cluster each" : "few columns: in pieces";
    case Kernel::kFlat:
      return "short columns: a thread each";
    case Kernel::kWrapped:
      return "few columns: rows as one run";
    default:
      return "few elements: a thread each";
  }
}

// What a model of the engine says of its candidates, whichever they are.
class CutModel {
 public:
  using Candidate = reduce::Candidate;

  explicit CutModel(const View& view) : v_(view) {}

  choose::Estimate estimate(const Candidate& c, double) const {
    choose::Estimate estimate = v_.estimate(c.cut);
    estimate.us += c.meeting_us;
    estimate.parts.exchange = c.meeting_us;
    return estimate;
  }

  Config choice(const Candidate& c) const {
    Config config{.kernel = c.kernel,
                  .threads = c.cut.threads,
                  .lanes = c.cut.lanes,
                  .tiles = c.cut.tiles,
                  .pieces = c.cut.pieces,
                  .cluster = c.cluster,
                  .mail = c.mail,
                  .collectors = c.collectors,
                  .one_shift = c.cut.one_shift};
    if (c.kernel == Kernel::kRuns) config.row_loads = v_.vectors_of_run();
    if (c.kernel == Kernel::kWrapped) {
      config.row_loads = period_of(v_.reduced().in_stride, v_.vector);
      config.vectors = static_cast<int>(config.threads / config.row_loads);
    }
    config.reason = reason_of(config);
    return config;
  }

 protected:
  const View& v_;
};

// Considers clusters and pieces that fill the GPU, by parts or several times. `cut` is whole; at
// most `most` pieces have something to do, and loads(pieces) are those of a thread.
template <typename Loads, typename Search>
void consider_pieces(const View& v, Kernel kernel, Cut cut, int64_t most, bool clusters,
                     const Loads& loads, Search& search) {
  const int64_t sms = v.device.sm_count, tiles = std::max<int64_t>(cut.tiles, 1);
  cut.pieces = 1, cut.loads = loads(1);
  search.consider(
      {.kernel = kernel, .cut = cut, .meeting_us = v.groups ? meeting_in_a_launch(cut) : 0});
  const int64_t slots = sms * std::min(cut.resident / cut.threads, kMaxBlocksOfSm);
  for (int c = 2; clusters && c <= std::min<int64_t>(kMaxCluster, most); c *= 2) {
    cut.pieces = c, cut.loads = loads(c);
    const double waves = static_cast<double>(tiles * c) / static_cast<double>(slots);
    const double meeting = kCluster + kClusterWave * std::max(waves - 1, 0.0);
    search.consider({.kernel = kernel, .cut = cut, .cluster = c, .meeting_us = meeting});
  }
  int64_t last = 1;
  for (const int64_t quarters : {1, 2, 4, 8, 12, 24}) {
    cut.pieces = std::min(most, sms * quarters / 4 / tiles);
    if (cut.pieces <= last) continue;
    last = cut.pieces, cut.loads = loads(cut.pieces);
    // However they meet: a call should not search for long.
    if (v.estimate(cut).us >= search.limit()) continue;
    search.consider({.kernel = kernel, .cut = cut, .meeting_us = meeting_in_a_launch(cut)});
    if (v.groups) continue;
    const auto by_mail = [&](int collectors) {
      search.consider({.kernel = kernel,
                       .cut = cut,
                       .mail = true,
                       .collectors = collectors,
                       .meeting_us = meeting_in_mail(cut, v.device.sm_count, collectors)});
    };
    by_mail(0);
    for (int n = 1; of_columns(kernel) && n <= kMaxOfTile; n *= 2) by_mail(n);
  }
}

}  // namespace xgemm::cuda::reduce
