// Dense matrix products on the CPU: fp32 accumulation, any strides, fp16/bf16/fp32 operands.
#pragma once

#include <string>

#include "common/gemm_problem.h"
#include "common/parallel.h"
#include "cpu/panel_source.h"

namespace xgemm::cpu {

// Computes in fp32 whatever the precision. Where `b` is given, B comes from it, and not from the
// problem, which has no batch then.
void gemm(const GemmProblem& problem, const Parallel& parallel, const PanelSource* b = nullptr);

// The kernel and blocking that `problem` gets, for people.
std::string explain_gemm(const GemmProblem& problem, int num_threads,
                         const PanelSource* b = nullptr);
// The same as a JSON object.
std::string explain_gemm_json(const GemmProblem& problem, int num_threads);

}  // namespace xgemm::cpu
