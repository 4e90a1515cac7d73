// Reductions, as functions over addresses.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/reduce/api.h"
#include "cuda/reduce/select.h"
#include "emulator/engine.h"

namespace bind_reduce {

namespace py = pybind11;
namespace reduce = xgemm::cuda::reduce;
namespace emulator = xgemm::emulator;

namespace {

using Address = uintptr_t;
using Kept = std::tuple<int64_t, int64_t, int64_t>;  // size; strides of input and output
using Reduced = std::pair<int64_t, int64_t>;         // size, stride

// What it is launched with: the choice, or another of the engine's candidates: of the kernel of
// this name the best, or the one of this number.
reduce::Config config_of(const xgemm::ReduceProblem& problem, const reduce::Plan& plan,
                         const xgemm::DeviceInfo& device, const std::string& kernel,
                         int64_t candidate) {
  if (kernel.empty() && candidate < 0) return reduce::select_config(problem, plan, device);
  xgemm::cuda::choose::Listing<reduce::Config> listing;
  const reduce::Config chosen = reduce::select_config(problem, plan, device, &listing);
  if (listing.empty()) return chosen;
  if (candidate >= 0) return listing[static_cast<size_t>(candidate) % listing.size()].choice;
  xgemm::cuda::choose::sort_by_estimate(&listing);
  for (const auto& each : listing) {
    if (reduce::explain(plan, each.choice).starts_with("kernel: " + kernel + ",")) {
      return each.choice;
    }
  }
  throw std::runtime_error("no candidate is of the kernel " + kernel);
}

// Returns the configuration's explanation. With `pieces` the problem is cut into so many: by mail
// (to so many collectors), or else in a second launch.
std::string run(int op, int dtype, Address in, Address out, const std::vector<Kept>& kept,
                const std::vector<Reduced>& reduced, double p, int capability, int sm_count,
                int pieces, bool mail, int collectors, const std::string& kernel,
                int64_t candidate) {
  xgemm::ReduceProblem problem;
  problem.op = static_cast<xgemm::ReduceOp>(op);
  problem.in_dtype = static_cast<xgemm::DType>(dtype);
  problem.in = reinterpret_cast<const void*>(in), problem.out = reinterpret_cast<void*>(out);
  problem.p = p;
  for (const auto& [size, of_in, of_out] : kept) problem.kept.push({size, of_in, of_out});
  for (const auto& [size, stride] : reduced) problem.reduced.push({size, stride, 0});
  const reduce::Plan plan = reduce::make_plan(problem);
  reduce::Config config =
      config_of(problem, plan, {.sm_count = sm_count, .capability = capability}, kernel, candidate);
  if (pieces > 0) {
    config.pieces = pieces, config.mail = mail;
    config.collectors = collectors;
    config.workspace_bytes = reduce::workspace_bytes(problem, plan, config);
  }
  const emulator::Workspace workspace(config.workspace_bytes);
  const xgemm::Status status = reduce::launch(problem, plan, config, workspace.get(), nullptr);
  if (!status.ok()) {
    throw std::runtime_error(std::string(status.where) + ": " + cudaGetErrorString(status.error));
  }
  return reduce::explain(plan, config);
}

}  // namespace

void define(py::module_& m) {
  m.def("reduce", &run, py::kw_only(), py::arg("op"), py::arg("dtype"), py::arg("source"),
        py::arg("destination"), py::arg("kept"), py::arg("reduced"), py::arg("p"),
        py::arg("capability"), py::arg("sm_count"), py::arg("pieces") = 0, py::arg("mail") = false,
        py::arg("collectors") = 0, py::arg("kernel") = "", py::arg("candidate") = -1);
}

}  // namespace bind_reduce
