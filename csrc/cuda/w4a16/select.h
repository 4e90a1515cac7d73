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
std::string explain(const Problem& problem, const Config& config);

}  // namespace xgemm::cuda::w4a16
