// The engine of csrc/cuda/choose over a model that Python describes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cuda/choose/constants_of.h"
#include "cuda/choose/engine.h"
#include "cuda/choose/h200.h"
#include "device.h"

namespace bind_choose {

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

void define(py::module_& m) {
  m.def("cold_read_us", [](double megabytes) { return choose::kH200.cold_read_us(megabytes); });
  // By name, of a GPU that is described.
  m.def(
      "constants_of",
      [](int capability, int sm_count, const Clocks& clocks) {
        const auto& gpu = choose::constants_of(device_of(capability, sm_count, clocks));
        py::dict all;
        all["mma_cycles_per_us"] = gpu.mma_cycles_per_us;
        all["fma_cycles_per_us"] = gpu.fma_cycles_per_us;
        all["mma_flops_per_cycle"] = gpu.mma_flops_per_cycle;
        all["dram_speed"] = gpu.dram_speed;
        all["l2_speed"] = gpu.l2_speed;
        all["clock_speed"] = gpu.clock_speed;
        all["all_sms_speed"] = gpu.all_sms_speed;
        all["mma_sync_speed"] = gpu.mma_sync_speed;
        py::list reads;
        for (const auto& [megabytes, us] : gpu.reads) reads.append(py::make_tuple(megabytes, us));
        all["reads"] = reads;
        return all;
      },
      py::arg("capability"), py::arg("sm_count"), py::arg("clocks"));
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

}  // namespace bind_choose
