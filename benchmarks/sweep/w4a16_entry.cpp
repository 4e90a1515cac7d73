// What benchmarks/sweep_w4a16.py calls: the candidates of all W4A16 kernels for a product, and a
// launch of each.
#include <cstdint>

#include "cuda/w4a16/api.h"
#include "cuda/w4a16/select.h"
#include "cuda/w4a16/sm80/select.h"
#include "listing.h"
#include "message.h"

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

}  // namespace

extern "C" {

// The choice first; its candidates, and those of the sm_80 kernel, which Hopper does not weigh.
Listed* sweep_open(const SweepProblem* given, int sm_count, int capability) {
  const xgemm::DeviceInfo device{.sm_count = sm_count, .capability = capability};
  const Problem problem = to_problem(*given);
  xgemm::cuda::choose::Listing<Choice> listing;
  const auto chosen = w4a16::select_config(problem, device, &listing);
  if (!chosen) return nullptr;
  if (capability == 90) w4a16::sm80::select(problem, device, &listing);
  return new Listed(problem, *chosen, listing, [&](const Choice& choice) {
    return w4a16::to_json(w4a16::fields_of(problem, choice));
  });
}

const char* sweep_text(const Listed* listed) { return listed->text.c_str(); }

// Null, or what went wrong.
const char* sweep_launch(const Listed* listed, int number, void* workspace, void* stream) {
  return xgemm::sweep::message_of(w4a16::launch(listed->problem, listed->choices[number], workspace,
                                                static_cast<cudaStream_t>(stream)));
}

void sweep_close(const Listed* listed) { delete listed; }

}  // extern "C"
