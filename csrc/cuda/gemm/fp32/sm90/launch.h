// Host side of the kernels that TMA feeds.
#pragma once

#include <cuda_runtime_api.h>

#include "common/status.h"
#include "cuda/gemm/fp32/plan.h"
#include "cuda/gemm/fp32/sm90/params.h"
#include "cuda/gemm/fp32/sm90/tiles.h"

namespace xgemm::cuda::gemm::fp32::sm90 {

// Both operands have a unit stride along their rows or along k; one batch dimension at most, and
// extents and CTAs that fit 32 bits. Of config.ctas, whole tiles are the first, then parts of the
// others. `workspace`: a tile of floats for each of these parts.
Status launch(const GemmProblem& problem, const Config& config, void* workspace,
              cudaStream_t stream);

// The gemv kernels whose parts of K are a cluster of config.cluster CTAs.
Status launch_gemv(const Params& params, const fp32::Config& config, cudaStream_t stream);

// The operands' tensor maps, which are in groups of 32 rows.
bool encode_operands(TmaParams* params, bool round_to_tf32);
// The shared memory that a CTA asks for, which uses `bytes` of it. An SM that has room gets several
// CTAs at once, while others idle where there are few: asking for more spreads them evenly.
inline constexpr int kSmemOfSm = 228 * 1024;
int spread_bytes(int bytes, int ctas_per_sm, int ctas);

}  // namespace xgemm::cuda::gemm::fp32::sm90
