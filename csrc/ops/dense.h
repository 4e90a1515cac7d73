// Runs a dense product on the device that holds its operands.
#pragma once

#include <string>
#include <vector>

#include "common/gemm_problem.h"
#include "ops/checks.h"
#include "ops/explain_form.h"

namespace xgemm::ops {

// `like` is any operand: all are on one device. The problem is not empty. `outer`: batch dimensions
// that it has no room for, outermost first; each of their indices is a product of its own.
void run_dense(const char* op, const GemmProblem& problem, const TensorView& like,
               const std::vector<BatchDim>& outer = {});

// Which CUDA kernel a problem gets on the current device, in words or as JSON.
std::string explain_dense_cuda(const char* op, const GemmProblem& problem, ExplainForm form);

}  // namespace xgemm::ops
