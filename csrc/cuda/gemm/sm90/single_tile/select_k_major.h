// Which tile, cluster and parts of K a product of some hundred rows takes in the kernel of one
// tile a CTA, where both operands lie along K.
#pragma once

#include <optional>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "cuda/choose/engine.h"
#include "cuda/gemm/choice.h"

namespace xgemm::cuda::gemm::sm90::single_tile {

// Whether select_k_major knows such products: 129 to 2047 rows or columns, beside 1024 and more of
// the others and of k; rows that begin with a line; no batch, no activation, and a D that vectors
// can store.
bool suits_k_major(const GemmProblem& p);

// The candidate with the least estimate. Nothing where there is none.
std::optional<choose::Scored<Choice>> select_k_major(const GemmProblem& p, const DeviceInfo& device,
                                                     choose::Listing<Choice>* listing);

}  // namespace xgemm::cuda::gemm::sm90::single_tile
