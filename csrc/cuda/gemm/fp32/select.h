// Which tile of the fp32 kernels a problem gets, and an estimate of its time.
#pragma once

#include <optional>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/choose/engine.h"
#include "cuda/gemm/choice.h"
#include "cuda/gemm/fp32/params.h"

namespace xgemm::cuda::gemm::fp32 {

// `listing`, if there is one, gets all that were scored.
std::optional<choose::Scored<Choice>> select(const GemmProblem& problem, const DeviceInfo& device,
                                             choose::Listing<Choice>* listing);
// The same among the gemv kernels alone; `params`: of make_gemv_params. Nothing of too many rows.
std::optional<choose::Scored<Choice>> select_gemv(const Params& params, const DeviceInfo& device,
                                                  choose::Listing<Choice>* listing);

}  // namespace xgemm::cuda::gemm::fp32
