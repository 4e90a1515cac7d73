// The ways to cut a problem, as the engine scores them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/choose/engine.h"
#include "cuda/reduce/cost.h"
#include "cuda/reduce/view.h"

namespace xgemm::cuda::reduce {

struct Candidate {
  Config config;
  Work work;
};

class Model;
using Search = choose::Search<Model, Config>;

// What can take a problem at all, cut in all ways that may be the best. Each has its own
// conditions: what its kernels are compiled for, and the ranges of their indices.
void consider_rows(const View& v, Search& search);     // select_rows.cpp
void consider_columns(const View& v, Search& search);  // select_columns.cpp
// select_elements.cpp
void consider_few_elements(const View& v, Search& search);
void consider_strided(const View& v, Search& search);
bool fits_rows(const View& v);
bool fits_columns(const View& v);

class Model {
 public:
  using Candidate = reduce::Candidate;

  explicit Model(const View& view) : v_(view) {}

  void candidates(Search& search) const {
    const bool rows = fits_rows(v_), columns = fits_columns(v_);
    if (rows) consider_rows(v_, search);
    if (columns) consider_columns(v_, search);
    consider_few_elements(v_, search);
    if (!rows && (!columns || v_.few_columns())) consider_strided(v_, search);
  }

  choose::Estimate estimate(const Candidate& c, double limit) const {
    choose::Estimate found =
        reduce::estimate(c.config, c.work, v_.megabytes, v_.device.sm_count, v_.gpu);
    if (found.us >= limit) return {};
    found.parts.exchange = meeting_us(c.config, c.work, v_.kind, v_.groups);
    found.us += found.parts.exchange;
    return found;
  }

  Config choice(const Candidate& c) const { return c.config; }

 private:
  const View& v_;
};

// Whole, and in pieces that fill the GPU, by parts or several times, of which `most` have something
// to do. `loads(pieces)` are those of a thread.
template <typename Loads>
void consider_pieces(const View& v, Candidate c, int64_t most, const Loads& loads, Search& search) {
  Config& config = c.config;
  c.work.loads = loads(1);
  if (most > 0) search.consider(c);
  int64_t last = 1;
  for (const int64_t quarters : {1, 2, 4, 8, 16, 32}) {
    config.pieces = std::min(most, v.device.sm_count * quarters / 4 / config.tiles);
    if (config.pieces <= last) continue;
    last = config.pieces, c.work.loads = loads(config.pieces);
    const int64_t slots = config.pieces * c.work.outputs_of_tile;
    const auto fits = [&] {
      const int64_t share = c.work.outputs_of_tile / std::max(config.collectors, 1);
      return share <= config.threads && slots / std::max(config.collectors, 1) <= kMaxMail;
    };
    // More collectors than leave a thread the fewest slots gain nothing.
    bool by_mail = false;
    config.mail = !v.groups, config.collectors = 0;
    for (int n = 0; config.mail && n <= kMaxCollectors; n = std::max(2 * n, 1)) {
      config.collectors = n;
      if (n > 0 && (!collects(config.kernel) || c.work.outputs_of_tile < n * kMinOfCollector))
        break;
      if (n * config.tiles > kMaxCollectorsOfSm * v.device.sm_count) break;
      if (!fits()) continue;
      search.consider(c), by_mail = true;
      if (slots_of_thread(config, c.work, v.kind) <= kFewestSlots) break;
    }
    config.mail = false, config.collectors = 0;
    if (!by_mail) search.consider(c);
  }
}

}  // namespace xgemm::cuda::reduce
