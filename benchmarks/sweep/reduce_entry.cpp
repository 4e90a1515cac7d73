// What benchmarks/sweep_reduce.py calls: the candidates of a reduction, and a launch of each.
#include <cstdint>

#include "cuda/reduce/api.h"
#include "cuda/reduce/select.h"
#include "listing.h"
#include "message.h"

namespace {

namespace reduce = xgemm::cuda::reduce;
using xgemm::ReduceProblem;
using Listed = xgemm::sweep::Listed<ReduceProblem, reduce::Config>;

// Mirrored in sweep/reductions.py.
struct SweepProblem {
  int32_t op, dtype, kept_count, reduced_count;
  int64_t kept[3 * 4];     // size, stride of the input, stride of the output
  int64_t reduced[2 * 4];  // size, stride
  const void* in;
  void* out;
};

ReduceProblem to_problem(const SweepProblem& given) {
  ReduceProblem problem;
  problem.op = static_cast<xgemm::ReduceOp>(given.op);
  problem.in_dtype = static_cast<xgemm::DType>(given.dtype);
  problem.in = given.in, problem.out = given.out;
  for (int i = 0; i < given.kept_count; ++i) {
    const int64_t* dim = given.kept + 3 * i;
    problem.kept.push({dim[0], dim[1], dim[2]});
  }
  for (int i = 0; i < given.reduced_count; ++i) {
    problem.reduced.push({given.reduced[2 * i], given.reduced[2 * i + 1], 0});
  }
  return problem;
}

}  // namespace

extern "C" {

// The choice first, then its other candidates.
Listed* sweep_open(const SweepProblem* given, int sm_count, int capability) {
  const ReduceProblem problem = to_problem(*given);
  xgemm::cuda::choose::Listing<reduce::Config> listing;
  const reduce::Config chosen =
      reduce::select_config(problem, reduce::make_plan(problem),
                            {.sm_count = sm_count, .capability = capability}, &listing);
  return new Listed(problem, chosen, listing, [](const reduce::Config& config) {
    return reduce::fields_of(config).add("workspace_bytes", config.workspace_bytes);
  });
}

const char* sweep_text(const Listed* listed) { return listed->text.c_str(); }

// Null, or what went wrong.
const char* sweep_launch(const Listed* listed, int number, void* workspace, void* stream) {
  return xgemm::sweep::message_of(
      reduce::launch(listed->problem, reduce::make_plan(listed->problem), listed->choices[number],
                     workspace, static_cast<cudaStream_t>(stream)));
}

void sweep_close(const Listed* listed) { delete listed; }

}  // extern "C"
