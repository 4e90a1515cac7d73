// The reduce ladder: its rungs in one table.
#include "cuda/ladder/reduce/00_interleaved_modulo.cuh"
#include "cuda/ladder/reduce/01_interleaved_index.cuh"
#include "cuda/ladder/reduce/02_sequential.cuh"
#include "cuda/ladder/reduce/03_add_on_load.cuh"
#include "cuda/ladder/reduce/04_last_warp_unrolled.cuh"
#include "cuda/ladder/reduce/05_all_unrolled.cuh"
#include "cuda/ladder/reduce/06_grid_stride.cuh"
#include "cuda/ladder/reduce/07_shuffles.cuh"
#include "cuda/ladder/reduce/08_wide_loads.cuh"

namespace xgemm::cuda::ladder {

std::span<const SumRung> reduce_rungs() {
  using namespace reduce;
  static constexpr SumRung kRungs[] = {
      {rung0::run, rung0::kTile}, {rung1::run, rung1::kTile}, {rung2::run, rung2::kTile},
      {rung3::run, rung3::kTile}, {rung4::run, rung4::kTile}, {rung5::run, rung5::kTile},
      {rung6::run, rung6::kTile}, {rung7::run, rung7::kTile}, {rung8::run, rung8::kTile},
  };
  return kRungs;
}

}  // namespace xgemm::cuda::ladder
