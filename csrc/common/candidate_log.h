// The candidates that a choice of kernels weighs, with their estimates, for `explain`.
//
// A choice returns its best candidate alone, and builds no other. Where the calling thread has a
// log, the choice also appends each candidate to it; the choice itself does not depend on that.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

namespace xgemm {

template <typename Config>
class CandidateLog {
 public:
  struct Candidate {
    Config config;
    double us;  // of all that is launched; reductions: cost, in the units of their estimates
  };

  CandidateLog() : outer_(active_) { active_ = this; }
  ~CandidateLog() { active_ = outer_; }
  CandidateLog(const CandidateLog&) = delete;
  CandidateLog& operator=(const CandidateLog&) = delete;

  // The thread's, or null.
  static CandidateLog* active() { return active_; }

  // A candidate that does not fit has no finite estimate.
  void add(const Config& config, double us) {
    if (std::isfinite(us)) candidates_.push_back({config, us});
  }
  size_t size() const { return candidates_.size(); }
  // What adjusts an estimate after it was weighed adjusts those that were added since.
  template <typename Adjust>
  void adjust_from(size_t first, const Adjust& adjust) {
    for (size_t i = first; i < candidates_.size(); ++i) {
      adjust(candidates_[i].config, candidates_[i].us);
    }
  }

  void drop_from(size_t first) { candidates_.resize(first); }

  std::vector<Candidate> sorted() const {
    std::vector<Candidate> all = candidates_;
    std::ranges::stable_sort(all, std::less{}, &Candidate::us);
    return all;
  }

 private:
  static inline thread_local CandidateLog* active_ = nullptr;
  CandidateLog* outer_;
  std::vector<Candidate> candidates_;
};

// The same of the thread's log, if it has one.
template <typename Config>
size_t logged() {
  const auto* log = CandidateLog<Config>::active();
  return log == nullptr ? 0 : log->size();
}
template <typename Config, typename Adjust>
void adjust_logged(size_t first, const Adjust& adjust) {
  if (auto* log = CandidateLog<Config>::active()) log->adjust_from(first, adjust);
}
template <typename Config>
void drop_logged(size_t first) {
  if (auto* log = CandidateLog<Config>::active()) log->drop_from(first);
}

// Weighs a candidate: `make` gives its configuration, which is built where it is the best so far
// or where there is a log.
template <typename Config, typename Make>
void weigh(double us, const Make& make, Config* best, double* best_us) {
  auto* log = CandidateLog<Config>::active();
  if (us >= *best_us && log == nullptr) return;
  const Config config = make();
  if (log != nullptr) log->add(config, us);
  if (us < *best_us) *best = config, *best_us = us;
}

}  // namespace xgemm
