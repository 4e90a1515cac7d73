// What benchmarks/sweep_mul.py calls: a dense product by a Config of its own, and select_config's.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "cuda/gemm/api.h"
#include "cuda/gemm/gemv/select.h"
#include "cuda/gemm/sm80/select.h"

namespace {

using xgemm::cuda::gemm::Config;
using xgemm::cuda::gemm::Kernel;
using xgemm::cuda::gemm::Problem;

// Mirrored in sweep/library.py.
struct SweepProblem {
  int64_t m, n, k;
  const void *a, *b;
  void* d;
  int64_t a_row_stride, a_col_stride, b_row_stride, b_col_stride, d_row_stride, d_col_stride;
  int32_t bf16;
};

struct SweepConfig {
  int32_t kernel, block_m, block_n, stages, cluster, splits, ctas, tma_store;
  int64_t workspace_bytes;
};

Problem to_problem(const SweepProblem& given) {
  Problem problem;
  problem.m = given.m, problem.n = given.n, problem.k = given.k;
  problem.dtype = given.bf16 != 0 ? xgemm::DType::kBF16 : xgemm::DType::kF16;
  problem.a = {given.a, given.a_row_stride, given.a_col_stride};
  problem.b = {given.b, given.b_row_stride, given.b_col_stride};
  problem.d = given.d;
  problem.d_row_stride = given.d_row_stride, problem.d_col_stride = given.d_col_stride;
  return problem;
}

SweepConfig to_sweep(const Config& config) {
  return {static_cast<int32_t>(config.kernel),
          config.block_m,
          config.block_n,
          config.stages,
          config.cluster,
          config.splits,
          config.ctas,
          config.tma_store,
          config.workspace_bytes};
}

}  // namespace

extern "C" {

void sweep_select(const SweepProblem* given, int sm_count, int capability, SweepConfig* chosen) {
  const xgemm::DeviceInfo device{.sm_count = sm_count, .capability = capability};
  *chosen = to_sweep(xgemm::cuda::gemm::select_config(to_problem(*given), device));
}

// What each family that takes the problem would choose itself; returns how many do (at most 4).
int sweep_families(const SweepProblem* given, int sm_count, int capability, SweepConfig* chosen) {
  const xgemm::DeviceInfo device{.sm_count = sm_count, .capability = capability};
  const Problem problem = to_problem(*given);
  int count = 0;
  Config config;
  double estimate_us = 0;
  chosen[count++] = to_sweep(xgemm::cuda::gemm::sm80::select(problem, device, &estimate_us));
  if (xgemm::cuda::gemm::gemv::select(problem, device, &config, &estimate_us)) {
    chosen[count++] = to_sweep(config);
  }
  return count;
}

// Null, or what went wrong.
const char* sweep_launch(const SweepProblem* given, const SweepConfig* chosen, void* workspace,
                         void* stream) {
  static thread_local std::string message;
  const Config config = {.kernel = static_cast<Kernel>(chosen->kernel),
                         .block_m = chosen->block_m,
                         .block_n = chosen->block_n,
                         .stages = chosen->stages,
                         .cluster = chosen->cluster,
                         .splits = chosen->splits,
                         .ctas = chosen->ctas,
                         .tma_store = chosen->tma_store != 0,
                         .workspace_bytes = chosen->workspace_bytes};
  const xgemm::Status status = xgemm::cuda::gemm::launch(to_problem(*given), config, workspace,
                                                         static_cast<cudaStream_t>(stream));
  if (status.ok()) return nullptr;
  message = std::string(status.where) + ": " + cudaGetErrorString(status.error);
  return message.c_str();
}

}  // extern "C"
