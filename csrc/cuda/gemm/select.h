// The choice of a kernel for a dense product.
#pragma once

#include <string>

#include "common/device.h"
#include "cuda/gemm/problem.h"

namespace xgemm::cuda::gemm {

// Pure: looks at shapes, strides and alignment, not at memory or the GPU.
Config select_config(const Problem& problem, const DeviceInfo& device);
std::string explain(const Problem& problem, const Config& config);

}  // namespace xgemm::cuda::gemm
