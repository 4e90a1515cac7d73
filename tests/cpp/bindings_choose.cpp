// The engine of csrc/cuda/choose over a model that Python describes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cuda/choose/engine.h"
#include "cuda/choose/h200.h"

namespace py = pybind11;
namespace choose = xgemm::cuda::choose;

namespace {

// Candidates are numbers, with estimates that are given; a choice is the candidate's name.
struct Model {
  using Candidate = int;
  const std::vector<double>& us;
  std::vector<std::pair<int, double>>* asked;  // candidates that were scored, and the limits

  template <typename Search>
  void candidates(Search& search) const {
    for (int i = 0; i < static_cast<int>(us.size()); ++i) search.consider(i);
  }
  choose::Estimate estimate(int i, double limit) const {
    asked->emplace_back(i, limit);
    return {.us = us[i], .parts = {.launch = us[i]}};
  }
  std::string choice(int i) const { return "candidate " + std::to_string(i); }
};

}  // namespace

void bind_choose(py::module_& m) {
  m.def("cold_read_us", [](double megabytes) { return choose::kH200.cold_read_us(megabytes); });
  // The choice or None, the listing as (name, us) by estimate, and what was asked for.
  m.def(
      "pick",
      [](const std::vector<double>& us, bool lists) {
        choose::Listing<std::string> listing;
        std::vector<std::pair<int, double>> asked;
        const auto best = choose::pick<std::string>(Model{us, &asked}, lists ? &listing : nullptr);
        choose::sort_by_estimate(&listing);
        std::vector<std::pair<std::string, double>> listed;
        for (const auto& [name, estimate] : listing) listed.emplace_back(name, estimate.us);
        const py::object choice = best ? py::cast(best->choice) : py::none();
        return py::make_tuple(choice, listed, asked);
      },
      py::arg("us"), py::arg("lists"));
}
