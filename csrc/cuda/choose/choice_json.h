// The JSON of a choice of kernels on CUDA: the problem, the choice, the candidates.
#pragma once

#include <string>

#include "common/json.h"
#include "cuda/choose/engine.h"

namespace xgemm::cuda::choose {

// The parts that a kernel has estimated.
inline JsonObject to_json(const Parts& parts) {
  JsonObject json;
  for_each_part(parts, [&](const char* name, double us) {
    if (us > 0) json.add(name, us);
  });
  return json;
}

// `fields_of` gives a choice's fields. The choice has an estimate where it is in the listing, which
// may be empty; a kernel that a rule gives a problem has none.
template <typename Choice, typename Fields>
std::string choice_json(const char* family, const JsonObject& problem, const Choice& chosen,
                        Listing<Choice>* listing, const Fields& fields_of) {
  JsonObject choice = fields_of(chosen);
  const std::string same = choice.text();
  const auto add_estimate = [](JsonObject& json, const Estimate& estimate) {
    json.add("estimate_us", estimate.us).add_raw("parts_us", to_json(estimate.parts).text());
  };
  JsonList candidates;
  bool estimated = false;
  sort_by_estimate(listing);
  for (const auto& [candidate, estimate] : *listing) {
    JsonObject fields = fields_of(candidate);
    if (!estimated && fields.text() == same) {
      add_estimate(choice, estimate);
      estimated = true;
    }
    add_estimate(fields, estimate);
    candidates.add(fields.add("reason", candidate.reason));
  }
  choice.add("reason", chosen.reason);
  return JsonObject()
      .add("family", family)
      .add("device", "cuda")
      .add_raw("problem", problem.text())
      .add_raw("choice", choice.text())
      .add_raw("candidates", candidates.text())
      .text();
}

}  // namespace xgemm::cuda::choose
