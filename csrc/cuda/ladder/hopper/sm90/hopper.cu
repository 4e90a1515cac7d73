// The hopper ladder: its rungs in one table.
#include "cuda/ladder/hopper/sm90/00_warp_tiling.cuh"
#include "cuda/ladder/hopper/sm90/01_wgmma.cuh"
#include "cuda/ladder/hopper/sm90/02_larger_tile.cuh"
#include "cuda/ladder/hopper/sm90/03_warp_specialized.cuh"
#include "cuda/ladder/hopper/sm90/04_two_consumers.cuh"
#include "cuda/ladder/hopper/sm90/05_persistent.cuh"
#include "cuda/ladder/hopper/sm90/06_few_arrivals.cuh"
#include "cuda/ladder/hopper/sm90/07_clusters.cuh"
#include "cuda/ladder/hopper/sm90/08_registers.cuh"
#include "cuda/ladder/hopper/sm90/09_tma_store.cuh"
#include "cuda/ladder/hopper/sm90/10_hilbert.cuh"
#include "cuda/ladder/hopper/sm90/11_stmatrix.cuh"

namespace xgemm::cuda::ladder {

std::span<const ProductRung> hopper_rungs() {
  using namespace hopper;
  static constexpr ProductRung kRungs[] = {
      {rung0::run, rung0::kBlockM, rung0::kBlockN, rung0::kBlockK},
      {rung1::run, rung1::kBlockM, rung1::kBlockN, rung1::kBlockK},
      {rung2::run, rung2::kBlockM, rung2::kBlockN, rung2::kBlockK},
      {rung3::run, rung3::kBlockM, rung3::kBlockN, rung3::kBlockK},
      {rung4::run, rung4::kBlockM, rung4::kBlockN, rung4::kBlockK},
      {rung5::run, rung5::kBlockM, rung5::kBlockN, rung5::kBlockK},
      {rung6::run, rung6::kBlockM, rung6::kBlockN, rung6::kBlockK},
      {rung7::run, rung7::kPairM, rung7::kBlockN, rung7::kBlockK},
      {rung8::run, rung8::kPairM, rung8::kBlockN, rung8::kBlockK},
      {rung9::run, rung9::kPairM, rung9::kBlockN, rung9::kBlockK},
      {rung10::run, rung10::kPairM, rung10::kBlockN, rung10::kBlockK},
      {rung11::run, rung11::kPairM, rung11::kBlockN, rung11::kBlockK},
  };
  return kRungs;
}

}  // namespace xgemm::cuda::ladder
