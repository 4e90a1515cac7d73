// The one engine that chooses kernels: it enumerates a model's candidates, scores them, picks.
//
// A model is what a kernel says of itself for one problem on one device:
//
//   using Candidate = ...;                                        // small, copied freely
//   template <typename Search> void candidates(Search&) const;    // calls search.consider(c)
//   Estimate estimate(const Candidate&, double limit) const;      // may stop at `limit`
//   Choice choice(const Candidate&) const;                        // what launch takes
//
// Models are pure. Only the best candidate becomes a Choice, except where a listing asks for all.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "cuda/choose/estimate.h"

namespace xgemm::cuda::choose {

template <typename Choice>
struct Scored {
  Choice choice;
  Estimate estimate;
};

// All candidates that were scored, for explain, sweeps and tests.
template <typename Choice>
using Listing = std::vector<Scored<Choice>>;

template <typename Candidate>
struct Best {
  Candidate candidate;
  Estimate estimate;
};

template <typename Model, typename Choice>
class Search {
 public:
  using Candidate = typename Model::Candidate;

  Search(const Model& model, Listing<Choice>* listing) : model_(model), listing_(listing) {}

  // An estimate that reaches it is not the best: a model need not enumerate or finish what is at
  // least as slow. Infinite where all candidates are wanted.
  double limit() const {
    return listing_ != nullptr ? std::numeric_limits<double>::infinity() : best_us();
  }

  void consider(const Candidate& candidate) {
    const Estimate estimate = model_.estimate(candidate, limit());
    if (listing_ != nullptr && std::isfinite(estimate.us)) {
      listing_->push_back({model_.choice(candidate), estimate});
    }
    if (estimate.us < best_us()) best_ = {candidate, estimate};
  }

  const std::optional<Best<Candidate>>& best() const { return best_; }

 private:
  double best_us() const {
    return best_ ? best_->estimate.us : std::numeric_limits<double>::infinity();
  }

  const Model& model_;
  Listing<Choice>* listing_;
  std::optional<Best<Candidate>> best_;
};

// The candidate with the least estimate, the first of equals. Nothing where a model has none.
template <typename Choice, typename Model>
std::optional<Best<typename Model::Candidate>> best_of(const Model& model,
                                                       Listing<Choice>* listing = nullptr) {
  Search<Model, Choice> search(model, listing);
  model.candidates(search);
  return search.best();
}

// The same, as launch takes it.
template <typename Choice, typename Model>
std::optional<Scored<Choice>> pick(const Model& model, Listing<Choice>* listing) {
  const auto best = best_of<Choice>(model, listing);
  if (!best) return std::nullopt;
  return Scored<Choice>{model.choice(best->candidate), best->estimate};
}

// The faster of two, the first of equals.
template <typename Choice>
std::optional<Scored<Choice>> faster(const std::optional<Scored<Choice>>& a,
                                     const std::optional<Scored<Choice>>& b) {
  return b && (!a || b->estimate.us < a->estimate.us) ? b : a;
}

template <typename Choice>
size_t size_of(const Listing<Choice>* listing) {
  return listing == nullptr ? 0 : listing->size();
}

// What is true of all that a kernel's launch needs, as a copy before it, changes the pick and what
// the listing got since it had `first`: `change(choice, estimate)`.
template <typename Choice, typename Change>
void adjust(std::optional<Scored<Choice>>* best, Listing<Choice>* listing, size_t first,
            const Change& change) {
  if (*best) change((*best)->choice, (*best)->estimate);
  for (size_t i = first; i < size_of(listing); ++i) {
    change((*listing)[i].choice, (*listing)[i].estimate);
  }
}

template <typename Choice>
void sort_by_estimate(Listing<Choice>* listing) {
  std::ranges::stable_sort(*listing, std::less{},
                           [](const Scored<Choice>& scored) { return scored.estimate.us; });
}

}  // namespace xgemm::cuda::choose
