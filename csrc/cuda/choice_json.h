// The JSON of a choice of kernels on CUDA: the problem, the choice, the candidates.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/candidate_log.h"
#include "common/json.h"

namespace xgemm::cuda {

// `choose` gives the configuration, or nothing where no kernel takes the problem: then the text is
// empty. `fields_of` gives a configuration's fields. The choice has an estimate where it is one of
// the candidates that were weighed; without `with_candidates` neither is said, and none is logged.
template <typename Config, typename Choose, typename Fields>
std::string choice_json(const char* family, const JsonObject& problem, bool with_candidates,
                        const Choose& choose, const Fields& fields_of) {
  std::optional<CandidateLog<Config>> log;
  if (with_candidates) log.emplace();
  const std::optional<Config> chosen = choose();
  if (!chosen) return "";
  JsonObject choice = fields_of(*chosen);
  const std::string same = choice.text();
  using Candidate = typename CandidateLog<Config>::Candidate;
  JsonList candidates;
  bool estimated = false;
  for (const auto& [config, us] : log ? log->sorted() : std::vector<Candidate>{}) {
    JsonObject fields = fields_of(config);
    if (!estimated && fields.text() == same) {
      choice.add("estimate_us", us);
      estimated = true;
    }
    candidates.add(fields.add("estimate_us", us).add("reason", config.reason));
  }
  choice.add("reason", chosen->reason);
  return JsonObject()
      .add("family", family)
      .add("device", "cuda")
      .add_raw("problem", problem.text())
      .add_raw("choice", choice.text())
      .add_raw("candidates", candidates.text())
      .text();
}

}  // namespace xgemm::cuda
