// The sgemm ladder: its rungs in one table.
#include "cuda/ladder/sgemm/00_naive.cuh"
#include "cuda/ladder/sgemm/01_coalesced.cuh"
#include "cuda/ladder/sgemm/02_shared_tiles.cuh"
#include "cuda/ladder/sgemm/03_thread_tiles.cuh"
#include "cuda/ladder/sgemm/04_double_buffered.cuh"
#include "cuda/ladder/sgemm/05_quarters.cuh"
#include "cuda/ladder/sgemm/06_warp_tiles.cuh"
#include "cuda/ladder/sgemm/07_maxas.cuh"
#include "cuda/ladder/sgemm/08_cp_async.cuh"

namespace xgemm::cuda::ladder {

std::span<const ProductRung> sgemm_rungs() {
  using namespace sgemm;
  static constexpr ProductRung kRungs[] = {
      {rung0::run, rung0::kTile, rung0::kTile, 1},
      {rung1::run, rung1::kTile, rung1::kTile, 1},
      {rung2::run, rung2::kTile, rung2::kTile, rung2::kTile},
      {rung3::run, rung3::kBlockM, rung3::kBlockN, rung3::kBlockK},
      {rung4::run, rung4::kBlockM, rung4::kBlockN, rung4::kBlockK},
      {rung5::run, rung5::kBlockM, rung5::kBlockN, rung5::kBlockK},
      {rung6::run, rung6::kBlockM, rung6::kBlockN, rung6::kBlockK},
      {rung7::run, rung7::kBlockM, rung7::kBlockN, rung7::kBlockK},
      {rung8::run, rung8::kBlockM, rung8::kBlockN, rung8::kBlockK},
  };
  return kRungs;
}

}  // namespace xgemm::cuda::ladder
