// Runs a dense product on the device that holds its operands.
#pragma once

#include <string>

#include "common/precision.h"
#include "cpu/sgemm/api.h"
#include "ops/checks.h"
#include "ops/explain_form.h"

namespace xgemm::ops {

// `like` is any operand: all are on one device. The problem is not empty. The CPU computes in fp32
// whatever the precision, so that a model may ask for tf32 everywhere.
void run_dense(const char* op, const cpu::GemmProblem& problem, Precision precision,
               const TensorView& like);

// Which CUDA kernel a problem gets on the current device, in words or as JSON.
std::string explain_dense_cuda(const char* op, const cpu::GemmProblem& problem, Precision precision,
                               ExplainForm form);

}  // namespace xgemm::ops
