// Columns: neighbouring elements that belong to neighbouring outputs.
#include <algorithm>
#include <cstdint>

#include "common/math.h"
#include "cuda/reduce/families.h"
#include "cuda/reduce/params.h"
#include "cuda/reduce/select.h"
#include "cuda/reduce/thin.h"

namespace xgemm::cuda::reduce {
namespace {

constexpr int kFlatThreads = 256;
constexpr int64_t kMaxRowsOfFlatProducts = 10;
constexpr int kFlatResident = 768;                       // threads of an SM
constexpr int kColumnThreads = 512, kWidestLanes = 256;  // of a block; along its rows
constexpr int kNarrowest = 32;  // the least part of the widest lanes that is considered
// Of the limits of warp columns, and of where blocks of 512 threads are considered: 120 random
// problems, and 80 near the limits, beside what was chosen before.
constexpr int64_t kMinWarpRows = 128, kMaxWarpRows = 400;
constexpr int kWarpColumnsBlocks = 2048 / kWarpColumnsThreads;  // of an SM
constexpr int64_t kSharedBytes = 48 * 1024;
constexpr double kClusteredBytes = 100e6;  // from here on clusters of columns lose
constexpr int64_t kMaxWrapped = 64;        // columns: 99 and 100 are 1 to 4 % slower so
constexpr int64_t kMinWrapped = 512;       // rows of few columns: fewer are strided
// Of groups, by 247 random problems: runs of more bytes are read well one by one, a second launch
// pays from so many bytes on for each byte of a run (twice as many where runs are whole loads), and
// partial results of columns of fewer bytes take as long as the columns.
constexpr int64_t kMaxGroupRun = 64, kMinColumnBytes = 96;
constexpr double kMinGroupBytes = 2e6, kGroupBytesOfRun = 4e5;
constexpr int64_t kMaxGroupColumns = int64_t{1} << 22;
constexpr int64_t kSector = 32;  // bytes that are read together

// Few columns at strides that are no multiple of 16 bytes, in rows that lie so close to one another
// that they are best read as one run.
bool fits_wrapped(const View& v) {
  const int64_t columns = v.kept().size, stride = v.reduced().in_stride;
  if (v.few_kernels() || v.kind == Kind::kArg || v.plan.reduced.count > 1) return false;
  if (columns > kMaxWrapped || v.all_aligned(true)) return false;
  if (v.few_columns() && v.plan.extent < kMinWrapped) return false;
  if (stride < columns || (2 * columns < stride && stride * v.element > kSector)) return false;
  const int64_t elements = (v.plan.extent - 1) * stride + columns;
  return period_of(stride, v.vector) <= kColumnThreads && 2 * v.vector <= elements &&
         elements < k31Bits * v.vector;
}

// Threads of an SM, where it was measured by the registers that columns take.
int columns_resident(const View& v) {
  const DType dtype = v.problem.in_dtype;
  if (v.kind == Kind::kProd && (dtype == DType::kF16 || dtype == DType::kF32)) return 640;
  if (v.kind == Kind::kSquares && dtype == DType::kBF16) return 640;
  if (v.kind == Kind::kSquares && dtype == DType::kF32) return 896;
  if (v.kind == Kind::kExtreme && v.element == 4) return 768;
  return v.vector > 4 ? 768 : 1024;
}

template <typename Search>
void consider_wrapped(const View& v, Search& search) {
  if (!fits_wrapped(v)) return;
  const int64_t columns = v.kept().size, stride = v.reduced().in_stride;
  const int64_t period = period_of(stride, v.vector), lanes = pow2_ceil(columns);
  const int64_t vectors = ceil_div((v.plan.extent - 1) * stride + columns, v.vector);
  for (int threads = kMinThreads; threads <= kColumnThreads; threads *= 2) {
    const Config alone{.kernel = Kernel::kWrapped, .threads = threads};
    if (threads < std::max(period, lanes)) continue;
    if (shared_bytes(alone, v.kind, v.problem.in_dtype) > kSharedBytes) continue;
    const int64_t busy = threads / period * period;
    const double unread = static_cast<double>(stride) / static_cast<double>(columns);
    const Cut cut{.threads = threads,
                  .lanes = static_cast<int>(lanes),
                  .tiles = v.plan.outputs / columns,
                  .outputs_of_tile = lanes,
                  .batch = v.batch,
                  .resident = v.four_byte_lanes() && v.vector <= 4
                                  ? 1024
                                  : std::min(768, columns_resident(v)),
                  .run = threads * 16,
                  .slower = (threads > kWidestLanes ? 1 : kSmallBlocksOfRun) * unread,
                  .end = kWrappedEnd,
                  .tiled = true};
    consider_pieces(
        v, Kernel::kWrapped, cut, ceil_div<int64_t>(vectors, busy), false,
        [&](int64_t pieces) { return ceil_div(vectors, pieces * busy); }, search);
  }
}

struct WrappedModel : CutModel {
  using CutModel::CutModel;

  template <typename Search>
  void candidates(Search& search) const {
    consider_wrapped(v_, search);
    consider_thin(v_, search);
  }
};

// A thread has all of its columns.
bool fits_flat(const View& v) {
  const int64_t across = ceil_div(v.kept().size, v.vector);
  return has_flat(v.problem.in_dtype) && !v.few_kernels() && !v.groups &&
         v.plan.outputs / v.kept().size * across < k31Bits && v.plan.extent <= kMaxOfThread;
}

template <typename Search>
void consider_flat(const View& v, Search& search) {
  const int64_t across = ceil_div(v.kept().size, v.vector);
  const int64_t outer = v.plan.outputs / v.kept().size;
  Cut cut{.batch = in_flight(Kernel::kFlat, v.kind, v.problem.in_dtype), .resident = kFlatResident};
  for (cut.threads = kMinThreads; cut.threads <= kFlatThreads; cut.threads *= 2) {
    cut.lanes = 1, cut.tiles = ceil_div<int64_t>(outer * across, cut.threads), cut.pieces = 1;
    cut.loads = v.plan.extent + kFlatLoads;
    cut.run = 16 * std::min<int64_t>(across, cut.threads);
    search.consider({.kernel = Kernel::kFlat, .cut = cut});
  }
}

template <typename Search>
void consider_tiles(const View& v, Search& search) {
  const bool shifted = v.few_kernels() || !v.all_aligned(true) || v.plan.reduced.count > 1;
  const Kernel kernel = shifted ? Kernel::kShifted : Kernel::kColumns;
  const int64_t across = ceil_div(v.kept().size, v.vector);
  const int64_t outer = v.plan.outputs / v.kept().size;
  Cut cut;
  // (What is 8 bytes takes blocks long to bring together, which only tall columns hide.)
  cut.large = v.bytes >= kLargeReductionBytes && v.all_aligned(true, kLine) &&
              v.plan.extent >= (v.four_byte_lanes() ? kTallColumn : kTallestColumn);
  cut.tiled = true;
  cut.words_of_slot = v.kind == Kind::kArg ? 2 : 1;
  cut.resident = columns_resident(v);
  const DType result = reduce_output_dtype(v.problem.op, v.problem.in_dtype);
  if (stores_lanes(v.vector * element_size(result)) && v.bytes >= kMinAloneBytes && !v.groups) {
    cut.end_alone = kAloneEnd;
  }
  if (shifted) cut.best_threads = 256, cut.resident = v.vector > 4 ? 512 : 1024;
  const auto widest = static_cast<int>(std::min<int64_t>(pow2_ceil(across), kWidestLanes));
  const int narrowest =
      std::max(cut.large ? std::min<int>(kLine / 16, widest) : 1, widest / kNarrowest);
  for (int lanes = widest; lanes >= narrowest; lanes /= 2) {
    const int fewest_threads = cut.large ? kWidestLanes : std::max(lanes, kMinThreads);
    for (int threads = fewest_threads; threads <= kColumnThreads; threads *= 2) {
      const auto vector = static_cast<int>(v.vector);
      Config alone{.kernel = kernel, .threads = threads, .lanes = lanes};
      alone.one_shift = has_one_shift(alone, v.plan, vector);
      if (shared_bytes(alone, v.kind, v.problem.in_dtype) > kSharedBytes) alone.one_shift = false;
      if (shared_bytes(alone, v.kind, v.problem.in_dtype) > kSharedBytes) continue;
      Config largest = alone;
      largest.cluster = kMaxCluster;
      const bool clusters = v.clusters() && !shifted && !v.groups && v.bytes < kClusteredBytes &&
                            shared_bytes(largest, v.kind, v.problem.in_dtype) <= kSharedBytes;
      // A tile that is as wide as the rows is read in one run.
      const bool whole_rows = !shifted && lanes == across && v.reduced().in_stride == v.kept().size;
      // Where so much is read that blocks of 512 threads do so 1 to 8 % faster. (Elsewhere they
      // gain nothing, and in wide rows they lose.)
      const bool stream = v.large_blocks() && !shifted &&
                          (whole_rows || (cut.large && v.plan.extent >= kTallestColumn));
      if (threads > kWidestLanes && !stream) continue;
      cut.threads = threads, cut.lanes = lanes, cut.run = 16 * (whole_rows ? threads : lanes);
      // Two loads and a shift for each 16 bytes take as long as four loads, of which fewer are
      // under way.
      const bool twice = shifted && !alone.one_shift;
      cut.batch = in_flight(alone.kernel, v.kind, v.problem.in_dtype) / (twice ? 2 : 1);
      const int64_t each = twice ? 4 : 1;
      cut.one_shift = alone.one_shift;
      cut.slower = threads > kWidestLanes || !stream ? 1
                   : whole_rows                      ? kSmallBlocksOfRun
                                                     : kSmallBlocksOfTiles;
      cut.tiles = outer * ceil_div<int64_t>(v.kept().size, tile_columns(alone, vector));
      cut.outputs_of_tile = lanes * v.vector;
      const int64_t groups = threads / lanes;
      consider_pieces(
          v, kernel, cut, ceil_div(v.plan.extent, groups), clusters,
          [&](int64_t pieces) { return each * ceil_div(v.plan.extent, pieces * groups); }, search);
    }
  }
}

struct TiledModel : CutModel {
  using CutModel::CutModel;

  template <typename Search>
  void candidates(Search& search) const {
    const bool flat = fits_flat(v_);
    if (flat) consider_flat(v_, search);
    // Products of bf16 cannot store a thread's results at once, as flat columns do.
    const bool flat_alone = flat && v_.kind == Kind::kProd && v_.problem.in_dtype == DType::kBF16 &&
                            v_.plan.extent <= kMaxRowsOfFlatProducts && v_.bytes >= kMinAloneBytes;
    if (flat_alone) return;
    consider_tiles(v_, search);
    consider_wrapped(v_, search);
    consider_thin(v_, search);
  }
};

Config tiled_columns(const View& v, choose::Listing<Config>* listing) {
  const auto best = choose::pick<Config>(TiledModel(v), listing);
  return best ? best->choice : Config{};
}

// Rows at odd strides, of which the warps of one wave of blocks load all that there is at once.
bool fits_warp_columns(const View& v) {
  const int64_t tiles = ceil_div<int64_t>(v.plan.outputs, 32);
  return v.small() && v.element == 2 && v.plan.kept.count == 1 && v.plan.reduced.count == 1 &&
         !v.all_aligned(true) && kMinWarpRows < v.plan.extent && v.plan.extent <= kMaxWarpRows &&
         tiles >= v.device.sm_count && tiles <= kWarpColumnsBlocks * v.device.sm_count;
}

Config warp_columns(const View& v) {
  return {.kernel = Kernel::kWarpColumns,
          .threads = kWarpColumnsThreads,
          .tiles = ceil_div<int64_t>(v.plan.outputs, 32),
          .reason = "columns at an odd stride: a warp has 32"};
}

}  // namespace

bool fits_columns(const View& v) {
  const Plan& plan = v.plan;
  if (v.kept().in_stride != 1 || v.kept().size < 2) return false;
  if (plan.kept.count > Params::kMaxKept || plan.reduced.count > 2) return false;
  if (plan.extent >= k31Bits || plan.outputs / v.vector >= k31Bits / 2) return false;
  return !v.few_columns() || fits_wrapped(v);
}

Config columns(const View& v, choose::Listing<Config>* listing) {
  if (v.few_columns()) {
    const auto best = choose::pick<Config>(WrappedModel(v), listing);
    return best ? best->choice : Config{};
  }
  return fits_warp_columns(v) ? warp_columns(v) : tiled_columns(v, listing);
}

bool fits_groups(const View& v) {
  const ReduceDim &kept = v.kept(), &inner = v.reduced();
  const int64_t columns = kept.size * inner.size;
  if (v.kind == Kind::kArg || v.plan.reduced.count != 2 || inner.in_stride != 1) return false;
  if (kept.in_stride != inner.size || kept.out_stride != 1) return false;
  if (v.plan.kept.count > Params::kMaxKept || 2 * columns <= v.vector) return false;
  if (v.plan.reduced[0].size * v.element < kMinColumnBytes) return false;
  if (v.plan.extent >= k31Bits || v.plan.outputs * inner.size > kMaxGroupColumns) return false;
  const int64_t run = inner.size * v.element, loads = inner.size % v.vector == 0 ? 2 : 1;
  const double fewest = kGroupBytesOfRun * static_cast<double>(run * loads);
  return run <= kMaxGroupRun && v.bytes >= std::max(kMinGroupBytes, fewest);
}

Config groups(const View& v, choose::Listing<Config>* listing) {
  const Plan of_columns = columns_of_groups(v.plan);
  const size_t first = choose::size_of(listing);
  const View view{v.problem, of_columns, v.device, /*groups=*/true};
  auto best = choose::pick<Config>(TiledModel(view), listing);
  choose::adjust(&best, listing, first, [&](Config& config, choose::Estimate&) {
    config.group = static_cast<int>(v.reduced().size);
    config.reason = "short runs: columns first";
  });
  return best ? best->choice : Config{};
}

}  // namespace xgemm::cuda::reduce
