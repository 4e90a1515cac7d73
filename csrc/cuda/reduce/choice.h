// The cheapest of the ways to cut a problem, as they are considered one after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/candidate_log.h"
#include "cuda/reduce/cost.h"
#include "cuda/reduce/view.h"

namespace xgemm::cuda::reduce {

struct Choice {
  Config config;
  double cost = std::numeric_limits<double>::infinity();

  void consider(const Cut& cut, int cluster, bool mail, double cost_of_cut, int collectors = 0) {
    const auto make = [&] {
      Config other = config;
      other.threads = cut.threads, other.lanes = cut.lanes, other.tiles = cut.tiles;
      other.pieces = cut.pieces, other.cluster = cluster, other.mail = mail;
      other.one_shift = cut.one_shift, other.collectors = collectors;
      return other;
    };
    weigh(cost_of_cut, make, &config, &cost);
  }
};

// Tries clusters and pieces that fill the GPU, by parts or several times. `cut` is whole; at most
// `most` pieces have something to do, and loads(pieces) are those of a thread.
template <typename Loads>
void consider_pieces(const View& v, Cut cut, int64_t most, bool clusters, const Loads& loads,
                     Choice* choice) {
  const int64_t sms = v.device.sm_count, tiles = std::max<int64_t>(cut.tiles, 1);
  cut.pieces = 1, cut.loads = loads(1);
  choice->consider(cut, 1, false, v.estimate(cut) + (v.groups ? meeting_in_a_launch(cut) : 0));
  const int64_t slots = sms * std::min(cut.resident / cut.threads, kMaxBlocksOfSm);
  for (int c = 2; clusters && c <= std::min<int64_t>(kMaxCluster, most); c *= 2) {
    cut.pieces = c, cut.loads = loads(c);
    const double waves = static_cast<double>(tiles * c) / static_cast<double>(slots);
    const double meeting = kCluster + kClusterWave * std::max(waves - 1, 0.0);
    choice->consider(cut, c, false, v.estimate(cut) + meeting);
  }
  int64_t last = 1;
  for (const int64_t quarters : {1, 2, 4, 8, 12, 24}) {
    cut.pieces = std::min(most, sms * quarters / 4 / tiles);
    if (cut.pieces <= last) continue;
    last = cut.pieces, cut.loads = loads(cut.pieces);
    const double whole = v.estimate(cut);
    if (whole >= choice->cost) continue;  // however they meet: a call should not search for long
    choice->consider(cut, 1, false, whole + meeting_in_a_launch(cut));
    if (v.groups) continue;
    choice->consider(cut, 1, true, whole + meeting_in_mail(cut, v.device.sm_count, 0));
    for (int n = 1; of_columns(choice->config.kernel) && n <= kMaxOfTile; n *= 2) {
      choice->consider(cut, 1, true, whole + meeting_in_mail(cut, v.device.sm_count, n), n);
    }
  }
}

}  // namespace xgemm::cuda::reduce
