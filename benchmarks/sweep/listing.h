// What the entries of this folder show to Python: the candidates that the engine lists for a
// problem, by number.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/json.h"
#include "cuda/choose/choice_json.h"

namespace xgemm::sweep {

template <typename Problem, typename Choice>
class Listed {
 public:
  // `fields_of` gives a choice's fields as JSON. `chosen` is first, also where no listing has it.
  template <typename FieldsOf>
  Listed(Problem problem, const Choice& chosen, const cuda::choose::Listing<Choice>& listing,
         const FieldsOf& fields_of)
      : problem(std::move(problem)) {
    JsonList list;
    JsonObject first = fields_of(chosen);
    const std::string same = first.text();
    cuda::choose::Estimate estimate_of_first;
    for (const auto& [choice, estimate] : listing) {
      if (fields_of(choice).text() == same) estimate_of_first = estimate;
    }
    add(chosen, estimate_of_first, std::move(first), &list);
    for (const auto& [choice, estimate] : listing) {
      JsonObject fields = fields_of(choice);
      if (fields.text() != same) add(choice, estimate, std::move(fields), &list);
    }
    text = list.text();
  }

  Problem problem;
  std::vector<Choice> choices;
  std::string text;  // a list of objects

 private:
  void add(const Choice& choice, const cuda::choose::Estimate& estimate, JsonObject fields,
           JsonList* list) {
    fields.add("estimate_us", estimate.us)
        .add_raw("parts_us", cuda::choose::to_json(estimate.parts).text());
    choices.push_back(choice);
    list->add(fields);
  }
};

}  // namespace xgemm::sweep
