// What benchmarks/sweep_mul.py and sweep_fp32.py call: the candidates of the dense kernels for a
// product, and a launch of each. With XGEMM_SWEEP_HOST_ONLY the choice alone, without kernels.
#include <cstdint>

#include "common/gemm_problem.h"
#include "cuda/gemm/select.h"
#include "cuda/gemm/sm80/select.h"
#include "cuda/gemm/sm90/skinny/select.h"
#include "cuda/gemm/sm90/tma_fit.h"
#include "listing.h"
#ifndef XGEMM_SWEEP_HOST_ONLY
#include "cuda/gemm/api.h"
#include "message.h"
#endif

namespace {

namespace gemm = xgemm::cuda::gemm;
using gemm::Choice;
using xgemm::GemmProblem;
using xgemm::cuda::choose::Listing;
using Listed = xgemm::sweep::Listed<GemmProblem, Choice>;

// Mirrored in sweep/library.py.
struct SweepProblem {
  int64_t m, n, k;
  const void *a, *b;
  void* d;
  int64_t a_row_stride, a_col_stride, b_row_stride, b_col_stride, d_row_stride, d_col_stride;
  int32_t type;  // fp16, bf16, then fp32 by the three precisions
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

// What the choice weighs, and the kernels that it leaves out where others are always ahead.
Listing<Choice> list(const GemmProblem& problem, const xgemm::DeviceInfo& device, Choice* chosen) {
  Listing<Choice> listing;
  *chosen = gemm::select_config(problem, device, &listing);
  if (problem.dtype == xgemm::DType::kF32) return listing;
  gemm::sm80::select(problem, device, &listing);
  const bool by_tma = device.capability == 90 && gemm::sm90::extents_fit_tma(problem) &&
                      gemm::sm90::a_fits_tma(problem) && gemm::sm90::b_fits_tma(problem);
  if (by_tma) gemm::sm90::skinny::select(problem, device, &listing);
  return listing;
}

}  // namespace

extern "C" {

// The choice first, then its other candidates.
Listed* sweep_open(const SweepProblem* given, int sm_count, int capability) {
  const GemmProblem problem = to_problem(*given);
  Choice chosen;
  const Listing<Choice> listing =
      list(problem, {.sm_count = sm_count, .capability = capability}, &chosen);
  return new Listed(problem, chosen, listing, [&](const Choice& choice) {
    return gemm::to_json(gemm::fields_of(problem, choice));
  });
}

// The choice alone.
Listed* sweep_select(const SweepProblem* given, int sm_count, int capability) {
  const GemmProblem problem = to_problem(*given);
  const Choice chosen =
      gemm::select_config(problem, {.sm_count = sm_count, .capability = capability});
  return new Listed(problem, chosen, {}, [&](const Choice& choice) {
    return gemm::to_json(gemm::fields_of(problem, choice));
  });
}

const char* sweep_text(const Listed* listed) { return listed->text.c_str(); }

#ifndef XGEMM_SWEEP_HOST_ONLY
// Null, or what went wrong.
const char* sweep_launch(const Listed* listed, int number, void* workspace, void* stream) {
  return xgemm::sweep::message_of(gemm::launch(listed->problem, listed->choices[number], workspace,
                                               static_cast<cudaStream_t>(stream)));
}
#endif

void sweep_close(const Listed* listed) { delete listed; }

}  // extern "C"
