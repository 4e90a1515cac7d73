// The w4a16 ladder: its rungs in one table.
#include "cuda/ladder/w4a16/00_dequantize_first.cuh"
#include "cuda/ladder/w4a16/01_fused.cuh"
#include "cuda/ladder/w4a16/02_mma.cuh"
#include "cuda/ladder/w4a16/03_packed.cuh"
#include "cuda/ladder/w4a16/04_cp_async.cuh"
#include "cuda/ladder/w4a16/05_marlin.cuh"

namespace xgemm::cuda::ladder {

std::span<const QuantizedRung> w4a16_rungs() {
  using namespace w4a16;
  static constexpr QuantizedRung kRungs[] = {
      {rung0::run, rung0::workspace_bytes, false, 64, 128},
      {rung1::run, nullptr, false, 64, 128},
      {rung2::run, nullptr, false, 64, 128},
      {rung3::run, nullptr, true, 64, 128},
      {rung4::run, nullptr, true, 64, 128},
      {rung5::run, rung5::workspace_bytes, true, 256, 128},
  };
  return kRungs;
}

Status pack_w4a16(const PackedWeights& weights) { return w4a16::pack(weights); }

}  // namespace xgemm::cuda::ladder
