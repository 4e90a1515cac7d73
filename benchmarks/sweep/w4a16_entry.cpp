// What benchmarks/sweep_w4a16.py calls: the candidates of all W4A16 kernels for a product, and a
// launch of each. With XGEMM_SWEEP_HOST_ONLY the choice alone, without kernels.
#include <cstdint>

#include "cuda/w4a16/select.h"
#include "listing.h"
#ifndef XGEMM_SWEEP_HOST_ONLY
#include "cuda/w4a16/api.h"
#include "message.h"
#endif

namespace {

namespace w4a16 = xgemm::cuda::w4a16;
using w4a16::Choice;
using w4a16::Problem;
using Listed = xgemm::sweep::Listed<Problem, Choice>;

// Mirrored in sweep/w4a16.py.
struct SweepProblem {
  int64_t m, n, k, group_size;
  const void *x, *weight;
  void* d;
  int32_t bf16, zeros;
};

Problem to_problem(const SweepProblem& given) {
  Problem problem;
  problem.m = given.m;
  problem.weight = {
      static_cast<const uint8_t*>(given.weight),
      {.n = given.n, .k = given.k, .group_size = given.group_size, .zeros = given.zeros != 0},
      given.bf16 != 0};
  problem.dtype = given.bf16 != 0 ? xgemm::DType::kBF16 : xgemm::DType::kF16;
  problem.x = given.x, problem.x_row_stride = given.k;
  problem.d = given.d, problem.d_row_stride = given.n;
  return problem;
}

Listed* open(const SweepProblem& given, const xgemm::DeviceInfo& device, bool all) {
  const Problem problem = to_problem(given);
  xgemm::cuda::choose::Listing<Choice> listing;
  const auto chosen = w4a16::select_config(problem, device, all ? &listing : nullptr);
  if (!chosen) return nullptr;
  return new Listed(problem, *chosen, listing, [&](const Choice& choice) {
    return w4a16::to_json(w4a16::fields_of(problem, choice));
  });
}

}  // namespace

extern "C" {

// The choice first, then its other candidates.
Listed* sweep_open(const SweepProblem* given, int sm_count, int capability) {
  return open(*given, {.sm_count = sm_count, .capability = capability}, /*all=*/true);
}

// The choice alone.
Listed* sweep_select(const SweepProblem* given, int sm_count, int capability) {
  return open(*given, {.sm_count = sm_count, .capability = capability}, /*all=*/false);
}

const char* sweep_text(const Listed* listed) { return listed->text.c_str(); }

#ifndef XGEMM_SWEEP_HOST_ONLY
// Null, or what went wrong.
const char* sweep_launch(const Listed* listed, int number, void* workspace, void* stream) {
  return xgemm::sweep::message_of(w4a16::launch(listed->problem, listed->choices[number], workspace,
                                                static_cast<cudaStream_t>(stream)));
}
#endif

void sweep_close(const Listed* listed) { delete listed; }

}  // extern "C"
