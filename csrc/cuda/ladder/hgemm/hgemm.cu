// The hgemm ladder: its rungs in one table.
#include "cuda/ladder/hgemm/00_wmma_global.cuh"
#include "cuda/ladder/hgemm/01_wmma_shared.cuh"
#include "cuda/ladder/hgemm/02_padded.cuh"
#include "cuda/ladder/hgemm/03_mma.cuh"
#include "cuda/ladder/hgemm/04_mma_tiles.cuh"
#include "cuda/ladder/hgemm/05_swizzled.cuh"
#include "cuda/ladder/hgemm/06_cp_async.cuh"
#include "cuda/ladder/hgemm/07_large_tile.cuh"

namespace xgemm::cuda::ladder {

std::span<const ProductRung> hgemm_rungs() {
  using namespace hgemm;
  static constexpr ProductRung kRungs[] = {
      {rung0::run, rung0::kBlockM, rung0::kBlockN, rung0::kBlockK},
      {rung1::run, rung1::kBlockM, rung1::kBlockN, rung1::kBlockK},
      {rung2::run, rung2::kBlockM, rung2::kBlockN, rung2::kBlockK},
      {rung3::run, rung3::kBlockM, rung3::kBlockN, rung3::kBlockK},
      {rung4::run, rung4::kBlockM, rung4::kBlockN, rung4::kBlockK},
      {rung5::run, rung5::kBlockM, rung5::kBlockN, rung5::kBlockK},
      {rung6::run, rung6::kBlockM, rung6::kBlockN, rung6::kBlockK},
      {rung7::run, rung7::kBlockM, rung7::kBlockN, rung7::kBlockK},
  };
  return kRungs;
}

}  // namespace xgemm::cuda::ladder
