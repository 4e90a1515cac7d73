// What benchmarks/sweep_mul.py and sweep_fp32.py call: a dense product by a Config of its own, and
// select_config's.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "cuda/gemm/align/plan.h"
#include "cuda/gemm/api.h"
#include "cuda/gemm/gemv/select.h"
#include "cuda/gemm/select.h"
#include "cuda/gemm/sm80/select.h"
#include "cuda/gemm/sm90/persistent/select.h"
#include "cuda/gemm/sm90/single_tile/select.h"
#include "cuda/gemm/sm90/skinny/select.h"
#include "cuda/gemm/sm90/tma_fit.h"

namespace {

namespace gemm = xgemm::cuda::gemm;
using gemm::Config;
using gemm::Kernel;
using xgemm::GemmProblem;

// Mirrored in sweep/library.py.
struct SweepProblem {
  int64_t m, n, k;
  const void *a, *b;
  void* d;
  int64_t a_row_stride, a_col_stride, b_row_stride, b_col_stride, d_row_stride, d_col_stride;
  int32_t type;  // fp16, bf16, then fp32 by the three precisions
};

struct SweepConfig {
  int32_t kernel, block_m, block_n, stages, cluster, splits, ctas, tma_store, copy_a, copy_b,
      stream_k, swapped, shifted;
  int64_t workspace_bytes;
  double estimate_us;  // select's; 0 where it says none
};

GemmProblem to_problem(const SweepProblem& given) {
  GemmProblem problem;
  problem.m = given.m, problem.n = given.n, problem.k = given.k;
  problem.dtype = given.type == 0   ? xgemm::DType::kF16
                  : given.type == 1 ? xgemm::DType::kBF16
                                    : xgemm::DType::kF32;
  if (given.type > 1) problem.precision = static_cast<xgemm::Precision>(given.type - 2);
  problem.a = {given.a, given.a_row_stride, given.a_col_stride};
  problem.b = {given.b, given.b_row_stride, given.b_col_stride};
  problem.d = given.d;
  problem.d_row_stride = given.d_row_stride, problem.d_col_stride = given.d_col_stride;
  return problem;
}

SweepConfig to_sweep(const Config& config, double estimate_us = 0) {
  return {static_cast<int32_t>(config.kernel),
          config.block_m,
          config.block_n,
          config.stages,
          config.cluster,
          config.splits,
          config.ctas,
          config.tma_store,
          config.copy_a,
          config.copy_b,
          config.stream_k,
          config.swapped,
          config.shifted,
          config.workspace_bytes,
          estimate_us};
}

// The tile of the sm_90a kernel, after copies of the operands that TMA cannot read. The estimate is
// the product's alone.
Config sm90_choice(const GemmProblem& problem, const xgemm::DeviceInfo& device,
                   double* estimate_us) {
  const bool copy_a = !gemm::sm90::a_fits_tma(problem), copy_b = !gemm::sm90::b_fits_tma(problem);
  const gemm::align::AlignedCopy a = gemm::align::copy_of_a(problem),
                                 b = gemm::align::copy_of_b(problem);
  const GemmProblem copied =
      gemm::align::with_copies(problem, copy_a ? &a : nullptr, copy_b ? &b : nullptr);
  Config config = gemm::sm90::persistent::select(copied, device, estimate_us);
  config.copy_a = copy_a, config.copy_b = copy_b;
  config.workspace_bytes += (copy_a ? a.bytes() : 0) + (copy_b ? b.bytes() : 0);
  if (copy_a || copy_b) *estimate_us = 0;
  return config;
}

}  // namespace

extern "C" {

void sweep_select(const SweepProblem* given, int sm_count, int capability, SweepConfig* chosen) {
  const xgemm::DeviceInfo device{.sm_count = sm_count, .capability = capability};
  *chosen = to_sweep(gemm::select_config(to_problem(*given), device));
}

// What each family that takes the problem would choose itself; returns how many do (at most 6).
int sweep_families(const SweepProblem* given, int sm_count, int capability, SweepConfig* chosen) {
  const xgemm::DeviceInfo device{.sm_count = sm_count, .capability = capability};
  const GemmProblem problem = to_problem(*given);
  int count = 0;
  double us = 0;
  Config config = gemm::sm80::select(problem, device, &us);
  chosen[count++] = to_sweep(config, us);
  if (gemm::gemv::select(problem, device, &config, &us)) chosen[count++] = to_sweep(config, us);
  if (capability == 90 && gemm::sm90::extents_fit_tma(problem)) {
    config = sm90_choice(problem, device, &us);
    chosen[count++] = to_sweep(config, us);
    if (gemm::select_shifted(problem, device, &config, &us)) chosen[count++] = to_sweep(config);
    if (gemm::sm90::skinny::select(problem, device, &config, &us)) {
      chosen[count++] = to_sweep(config, us);
    }
    if (gemm::sm90::single_tile::select(problem, device, &config, &us)) {
      chosen[count++] = to_sweep(config, us);
    }
  }
  return count;
}

// Null, or what went wrong.
const char* sweep_launch([[maybe_unused]] const SweepProblem* given,
                         [[maybe_unused]] const SweepConfig* chosen,
                         [[maybe_unused]] void* workspace, [[maybe_unused]] void* stream) {
#ifdef XGEMM_SWEEP_HOST_ONLY
  return "the library holds the choice of kernels alone";
#else
  static thread_local std::string message;
  const Config config = {.kernel = static_cast<Kernel>(chosen->kernel),
                         .block_m = chosen->block_m,
                         .block_n = chosen->block_n,
                         .stages = chosen->stages,
                         .cluster = chosen->cluster,
                         .splits = chosen->splits,
                         .stream_k = chosen->stream_k != 0,
                         .shifted = chosen->shifted != 0,
                         .swapped = chosen->swapped != 0,
                         .ctas = chosen->ctas,
                         .tma_store = chosen->tma_store != 0,
                         .copy_a = chosen->copy_a != 0,
                         .copy_b = chosen->copy_b != 0,
                         .workspace_bytes = chosen->workspace_bytes};
  const xgemm::Status status =
      gemm::launch(to_problem(*given), config, workspace, static_cast<cudaStream_t>(stream));
  if (status.ok()) return nullptr;
  message = std::string(status.where) + ": " + cudaGetErrorString(status.error);
  return message.c_str();
#endif
}

}  // extern "C"
