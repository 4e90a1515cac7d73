// The compiled kernels, one translation unit for each target.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/gemv/params.h"
#include "cuda/gemm/gemv/view.h"

namespace xgemm::cuda::gemm::gemv {

inline constexpr int64_t kMaxBatches = 65535;  // of a grid

struct Grid {
  unsigned tiles;
  int warps;    // of a CTA
  int cluster;  // CTAs that sum their splits of k, or 1
};

using Launcher = Status(const Params& params, const Shape& shape, bool aligned, const Grid& grid,
                        cudaStream_t stream);
Launcher portable_f16, portable_bf16;  // splits leave their sums in params.partials
Launcher sm90_f16, sm90_bf16;          // splits are a cluster

Status sum_splits_f16(const Params& params, cudaStream_t stream);
Status sum_splits_bf16(const Params& params, cudaStream_t stream);

}  // namespace xgemm::cuda::gemm::gemv
