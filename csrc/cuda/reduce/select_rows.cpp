// Rows: contiguous elements of an output, by lanes of a warp, a warp, a block or several.
#include <algorithm>
#include <cstdint>

#include "common/math.h"
#include "cuda/reduce/families.h"
#include "cuda/reduce/params.h"
#include "cuda/reduce/thin.h"

namespace xgemm::cuda::reduce {
namespace {

constexpr int kShortThreads = 64, kTeamThreads = 128;
constexpr int kMaxRowThreads = 32 * kMaxRowWarps, kRowsResident = 1024;
constexpr int kMaxVectors = 8;    // of a row that a lane of short rows takes at once
constexpr int64_t kThinRow = 10;  // elements, where short rows are ragged
constexpr int kMinPieceThreads = 128;
constexpr int kStreamBlocks = 6;  // of an SM
constexpr int kEnoughWarps = 16;  // of an SM
// Of the limits of lone rows: 120 random problems, and 80 near the limits, beside what was chosen
// before.
constexpr double kManyBytesOfLoneRows = 40e6;

// The limits are those of the sweep: 16 loads where rows are few, 32 where they are many.
bool fits_short_rows(const View& v) {
  const Plan& plan = v.plan;
  if (v.few_kernels() || plan.reduced.count != 1 || plan.kept.count > 2) return false;
  if (plan.kept.count == 2 && plan.outputs >= k31Bits) return false;
  const bool many_whole = !v.few_rows() && v.all_aligned(false) && plan.extent % v.vector == 0;
  const bool fp64_of_fp32 =
      v.problem.in_dtype == DType::kF32 && v.kind != Kind::kArg && !v.four_byte_lanes();
  return v.vectors_of_row() <= (many_whole && !fp64_of_fp32 ? 32 : v.few_rows() ? 8 : 16);
}

bool fits_team_rows(const View& v) {
  if (v.plan.reduced.count != 1 || v.vector > 16) return false;
  const int64_t vectors = v.vectors_of_row();
  // Longer ones where few lack a block of their own.
  return vectors <= (v.few_rows() ? 64 : v.all_aligned(false) ? 256 : 512);
}

// Rows of up to 32 loads: several a warp.
Config short_rows(const View& v) {
  const bool whole =
      v.plan.kept.count == 1 && v.plan.extent % v.vector == 0 && v.all_aligned(false);
  Config config{.kernel = whole ? Kernel::kShortRows : Kernel::kRaggedRows};
  const int64_t vectors = v.vectors_of_row();
  const auto slots = static_cast<int>(pow2_ceil(vectors));
  if (v.few_rows() || !whole) {  // rather loads of one row than of several
    config.vectors = std::min({2 * slots, kMaxVectors, v.batch});
    if (!whole && !v.few_rows()) config.vectors = std::min({slots, kMaxVectors, v.batch});
    config.lanes = std::max(slots / (whole ? 4 : config.vectors), 1);
  } else {
    // One load of each of 8 rows, or more of fewer where what lanes hand each other is 8 bytes.
    if (v.four_byte_lanes()) {
      config.vectors = vectors == slots && slots <= 16 ? 1 : std::min(slots, 2);
    } else {
      config.vectors =
          slots <= 4 || vectors == 8 ? std::min(slots, 2) : std::clamp(slots / 4, 4, v.batch);
    }
    config.lanes = slots / config.vectors;
  }
  config.threads = kShortThreads;
  config.tiles = ceil_div<int64_t>(ceil_div(v.plan.outputs, rows_of_warp(config, v.batch)),
                                   config.threads / 32);
  config.row_loads = vectors;
  config.reason = "short rows: several a warp";
  return config;
}

// Rows of a warp, or of a part of one.
Config team_rows(const View& v) {
  const int64_t vectors = v.vectors_of_row();
  const int64_t fewest = std::max<int64_t>(8, 2 * v.vector);  // both ends in one load each
  // Fewer lanes than a warp's where they have no more than a batch each, and there are warps
  // enough.
  int64_t lanes = 32;
  while (lanes > fewest && 2 * vectors <= lanes * v.batch &&
         v.plan.outputs * lanes / 64 >= kEnoughWarps * v.device.sm_count) {
    lanes /= 2;
  }
  Config config{.kernel = Kernel::kTeamRows,
                .threads = kTeamThreads,
                .lanes = static_cast<int>(lanes),
                .reason = "rows: a warp each, or a part of one"};
  config.tiles = ceil_div<int64_t>(v.plan.outputs, kTeamThreads / lanes);
  return config;
}

// Threads of a lone row.
int lone_row_threads(int64_t vectors) {
  return vectors <= 256 ? 128 : vectors <= 1024 ? 256 : kMaxRowThreads;
}

// Where there is much to read most of a thread's loads should be there.
bool fits_lone_rows(const View& v) {
  if (!has_small(v.kind, v.problem.in_dtype) || v.plan.reduced.count > 1) return false;
  if (v.plan.kept.count > 1 || v.plan.outputs >= k31Bits - 1) return false;
  const int64_t vectors = v.vectors_of_row();
  const int64_t loads = kLoneRowLoads * lone_row_threads(vectors);
  return vectors <= loads && (v.bytes < kManyBytesOfLoneRows || 10 * vectors >= 7 * loads);
}

// As long as every SM has one of them at the most.
bool fits_row_pieces(const View& v) {
  if (!v.clusters() || !has_small(v.kind, v.problem.in_dtype)) return false;
  if (v.plan.kept.count > 1 || v.plan.reduced.count > 1) return false;
  const int64_t vectors = v.vectors_of_row(), most = v.device.sm_count / v.plan.outputs;
  return vectors > kMinPieceThreads * kRowPieceLoads &&
         vectors <= std::min<int64_t>(most, kMaxCluster) * kMaxRowThreads * kRowPieceLoads;
}

Config row_pieces(const View& v) {
  Config config{.kernel = Kernel::kRowPieces,
                .threads = kMinPieceThreads,
                .tiles = v.plan.outputs,
                .reason = "rows: a cluster each"};
  const int64_t loads = ceil_div<int64_t>(v.vectors_of_row(), kRowPieceLoads);  // of all threads
  const int64_t most = std::min<int64_t>(v.device.sm_count / v.plan.outputs, kMaxCluster);
  while (config.threads * most < loads) config.threads *= 2;
  config.pieces = config.cluster = static_cast<int>(ceil_div<int64_t>(loads, config.threads));
  return config;
}

struct BlockModel : CutModel {
  using CutModel::CutModel;

  template <typename Search>
  void candidates(Search& search) const {
    const bool runs = v_.plan.reduced.count > 1;
    const int64_t vectors = v_.vectors_of_row();
    // In long rows larger blocks read faster than the estimate knows, but for positions.
    const bool large = vectors >= kLongRow && v_.kind != Kind::kArg;
    const int fewest = large ? kLongRowThreads : kMinThreads;
    for (int threads = fewest; threads <= kMaxRowThreads; threads *= 2) {
      if (threads > kMinThreads && threads >= 2 * vectors) break;
      const Cut cut{.threads = threads,
                    .lanes = 1,
                    .tiles = v_.plan.outputs,
                    .outputs_of_tile = 1,
                    .batch = v_.batch,
                    .resident = kRowsResident,
                    .run = threads * 16,
                    .best_threads = 256};
      consider_pieces(
          v_, runs ? Kernel::kRuns : Kernel::kRows, cut, ceil_div<int64_t>(vectors, threads),
          v_.clusters() && !runs,
          [&](int64_t pieces) { return ceil_div(vectors, pieces * threads); }, search);
    }
    if (runs) consider_thin(v_, search);
  }
};

Config rows_of_blocks(const View& v, choose::Listing<Config>* listing) {
  const auto best = choose::pick<Config>(BlockModel(v), listing);
  if (!best) return {};
  Config config = best->choice;
  if (config.kernel != Kernel::kRows) return config;
  const int64_t vectors = v.vectors_of_row();
  if (config.pieces > 1 && fits_row_pieces(v)) return row_pieces(v);
  // Of so many bytes some blocks read faster than others: they had better be many.
  if (config.mail && v.bytes >= kStreamedBytes) {
    const int64_t pieces = kStreamBlocks * v.device.sm_count / v.plan.outputs;
    config.pieces = std::clamp(pieces, config.pieces, ceil_div<int64_t>(vectors, config.threads));
  }
  if (config.pieces == 1 && fits_lone_rows(v)) {
    config.kernel = Kernel::kLoneRows;
    config.threads = lone_row_threads(vectors);
  }
  return config;
}

}  // namespace

bool fits_rows(const View& v) {
  const Plan& plan = v.plan;
  if (v.reduced().in_stride != 1 || v.reduced().size == 1) return false;
  if (plan.kept.count > Params::kMaxKept) return false;
  if (v.vectors_of_row() >= k31Bits - 1) return false;
  if (v.kind == Kind::kArg && plan.extent >= k31Bits) return false;
  if (v.few_kernels() && plan.reduced.count > 1) return false;
  return plan.reduced.count == 1 || 2 * v.reduced().size >= v.vector;
}

// Short rows of whole loads have a kernel, ragged ones another. Rows in more dimensions, or of rare
// kinds, have none below team rows, whose lanes would mostly have nothing (2,500 random problems).
int64_t most_of_thin_row(const View& v) {
  if (fits_short_rows(v) || v.plan.reduced.count > 1) {
    const bool whole = v.all_aligned(false) && v.plan.extent % v.vector == 0;
    return whole && !v.few_kernels() ? 0 : kThinRow;
  }
  const bool many = !v.few_rows() && v.plan.kept.count > 2;
  return (many ? 32 : 12) * (v.element <= 2 ? 2 : 1);
}

Config rows(const View& v, choose::Listing<Config>* listing) {
  if (fits_short_rows(v)) return short_rows(v);
  return fits_team_rows(v) ? team_rows(v) : rows_of_blocks(v, listing);
}

}  // namespace xgemm::cuda::reduce
