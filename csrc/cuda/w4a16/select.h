// The choice of a kernel for a product with a packed 4-bit weight.
#pragma once

#include <optional>
#include <string>

#include "common/device.h"
#include "cuda/w4a16/problem.h"

namespace xgemm::cuda::w4a16 {

// Pure: looks at shapes, strides and alignment, not at memory or the GPU. Nothing where no kernel
// takes the problem.
std::optional<Config> select_config(const Problem& problem, const DeviceInfo& device);
// The same for whoever launches: each thread keeps its last answers.
std::optional<Config> remembered_config(const Problem& problem, const DeviceInfo& device);
// In words.
std::string explain(const Problem& problem, const Config& config);
// An object: the problem, the choice with its estimate and reason, and all candidates that were
// weighed, by their estimates. Empty for float32 activations, as select_config.
std::string explain_json(const Problem& problem, const DeviceInfo& device, bool candidates);

}  // namespace xgemm::cuda::w4a16
