// The JSON of a choice of kernels on CUDA: the problem, the choice, the candidates.
#pragma once

#include <string>

#include "common/candidate_log.h"
#include "common/json.h"

namespace xgemm::cuda {

// `fields_of` gives a configuration's fields. The choice has an estimate where the log has it: some
// are taken without one.
template <typename Config, typename Fields>
std::string choice_json(const char* family, const JsonObject& problem, const Config& chosen,
                        const CandidateLog<Config>& log, const Fields& fields_of) {
  JsonObject choice = fields_of(chosen);
  const std::string same = choice.text();
  JsonList candidates;
  bool estimated = false;
  for (const auto& [config, us] : log.sorted()) {
    JsonObject fields = fields_of(config);
    if (!estimated && fields.text() == same) {
      choice.add("estimate_us", us);
      estimated = true;
    }
    candidates.add(fields.add("estimate_us", us).add("reason", config.reason));
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

}  // namespace xgemm::cuda
