// What benchmarks/sweep_reduce.py calls: a reduction by a Config of its own, and select_config's.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/reduce/api.h"
#include "cuda/reduce/select.h"

namespace {

namespace reduce = xgemm::cuda::reduce;
using reduce::Config;

// Mirrored in sweep/reductions.py.
struct SweepProblem {
  int32_t op, dtype, kept_count, reduced_count;
  int64_t kept[3 * 4];     // size, stride of the input, stride of the output
  int64_t reduced[2 * 4];  // size, stride
  const void* in;
  void* out;
};

struct SweepConfig {
  int64_t kernel, threads, lanes, vectors, tiles, row_loads, pieces, cluster, mail, streams, sm90;
  int64_t one_shift, workspace_bytes, collectors;
};

xgemm::ReduceProblem to_problem(const SweepProblem& given) {
  xgemm::ReduceProblem problem;
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

SweepConfig to_sweep(const Config& c) {
  return {static_cast<int64_t>(c.kernel),
          c.threads,
          c.lanes,
          c.vectors,
          c.tiles,
          c.row_loads,
          c.pieces,
          c.cluster,
          c.mail,
          c.streams,
          c.sm90,
          c.one_shift,
          c.workspace_bytes,
          c.collectors};
}

Config to_config(const SweepConfig& c) {
  return {.kernel = static_cast<reduce::Kernel>(c.kernel),
          .threads = static_cast<int>(c.threads),
          .lanes = static_cast<int>(c.lanes),
          .vectors = static_cast<int>(c.vectors),
          .tiles = c.tiles,
          .row_loads = c.row_loads,
          .pieces = c.pieces,
          .cluster = static_cast<int>(c.cluster),
          .mail = c.mail != 0,
          .collectors = static_cast<int>(c.collectors),
          .streams = c.streams != 0,
          .sm90 = c.sm90 != 0,
          .one_shift = c.one_shift != 0,
          .workspace_bytes = c.workspace_bytes};
}

}  // namespace

extern "C" void sweep_select(const SweepProblem* given, int sm_count, int capability,
                             SweepConfig* config) {
  const xgemm::ReduceProblem problem = to_problem(*given);
  *config = to_sweep(reduce::select_config(problem, reduce::make_plan(problem),
                                           {.sm_count = sm_count, .capability = capability}));
}

// Returns null, or what went wrong.
extern "C" const char* sweep_launch(const SweepProblem* given, const SweepConfig* config,
                                    void* workspace, void* stream) {
  const xgemm::ReduceProblem problem = to_problem(*given);
  const xgemm::Status status =
      reduce::launch(problem, reduce::make_plan(problem), to_config(*config), workspace,
                     static_cast<cudaStream_t>(stream));
  return status.ok() ? nullptr : cudaGetErrorString(status.error);
}
