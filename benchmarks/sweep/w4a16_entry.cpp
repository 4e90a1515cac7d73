// What benchmarks/sweep_w4a16.py calls: a product with a packed weight by a Config of its own for
// the sm_80 kernel, and the choice of that kernel's select.
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "cuda/w4a16/api.h"
#include "cuda/w4a16/sm80/select.h"

namespace {

namespace w4a16 = xgemm::cuda::w4a16;
using w4a16::Config;
using w4a16::Problem;

// Mirrored in sweep/w4a16.py.
struct SweepProblem {
  int64_t m, n, k, group_size;
  const void *x, *weight;
  void* d;
  int32_t bf16, zeros;
};

struct SweepConfig {
  int32_t block_m, block_n, stages, splits, ctas;
  int64_t workspace_bytes;
  double estimate_us;  // select's; 0 where it says none
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

void sweep_select(const SweepProblem* given, int sm_count, int capability, SweepConfig* chosen) {
  double us = 0;
  const Config config = w4a16::sm80::select(to_problem(*given),
                                            {.sm_count = sm_count, .capability = capability}, &us);
  *chosen = {config.block_m,
             config.block_n,
             config.stages,
             config.splits,
             config.ctas,
             config.workspace_bytes,
             us};
}

// Null, or what went wrong.
const char* sweep_launch(const SweepProblem* given, const SweepConfig* chosen, void* workspace,
                         void* stream) {
  static thread_local std::string message;
  const Config config = {.kernel = w4a16::Kernel::kSm80,
                         .block_m = chosen->block_m,
                         .block_n = chosen->block_n,
                         .stages = chosen->stages,
                         .splits = chosen->splits,
                         .ctas = chosen->ctas,
                         .workspace_bytes = chosen->workspace_bytes};
  const xgemm::Status status =
      w4a16::launch(to_problem(*given), config, workspace, static_cast<cudaStream_t>(stream));
  if (status.ok()) return nullptr;
  message = std::string(status.where) + ": " + cudaGetErrorString(status.error);
  return message.c_str();
}

}  // extern "C"
