// Which kernel a reduction gets, and how it is cut up.
#include "cuda/reduce/select.h"

#include <algorithm>
#include <cstdint>

#include "common/math.h"
#include "cuda/reduce/families.h"

namespace xgemm::cuda::reduce {
namespace {

constexpr int kStridedThreads = 256;
// Elements that a thread should have to itself at any strides.
constexpr int64_t kThinStrided = 16;
constexpr int64_t kMaxBatchesInOnePiece = 4;
constexpr int64_t kMinStridedTiles = 2;              // of an SM
constexpr int64_t kStridedPiece = int64_t{1} << 30;  // elements, at most

DType result_of(const View& v) { return reduce_output_dtype(v.problem.op, v.problem.in_dtype); }

// One element each, which is the result, all behind one another, or whose position is.
bool fits_copy(const View& v) {
  const ReduceOp op = v.problem.op;
  if (v.plan.extent != 1) return false;
  if (finds_positions(op)) return true;
  if (v.plan.kept.count != 1 || v.kept().in_stride != 1) return false;
  return op != ReduceOp::kNorm && result_of(v) == v.problem.in_dtype;
}

Config strided(const View& v) {
  Config config{.kernel = Kernel::kStrided, .threads = kStridedThreads};
  const Plan& plan = v.plan;
  const int64_t sms = v.device.sm_count;
  // Adjacent outputs to adjacent threads where their elements lie closest, or where an output has
  // too few for a block.
  int64_t inside = 1;  // outputs that lie closer to one another than an output's elements
  for (int d = plan.kept.count - 1; d >= 0 && !lies_inside(v.reduced(), plan.kept[d]); --d) {
    const bool enough = d == plan.kept.count - 1 || plan.outputs >= 32 * kMinStridedTiles * sms;
    if (enough) inside *= plan.kept[d].size;
  }
  int64_t lanes = std::min<int64_t>(pow2_ceil(inside), 32);
  while (lanes < 32 && kStridedThreads / lanes >= 2 * plan.extent) lanes *= 2;
  config.lanes = static_cast<int>(lanes);
  config.tiles = ceil_div(plan.outputs, lanes);
  // Elements are small loads: every thread should have several in flight, and there should be many
  // threads.
  while (config.threads > 32 && config.threads / 2 / lanes * v.batch >= plan.extent) {
    config.threads /= 2;
  }
  if (config.tiles < 2 * sms && 2 * config.threads / lanes * v.batch <= plan.extent) {
    config.threads *= 2;
  }
  const int64_t batches = ceil_div<int64_t>(plan.extent, config.threads / lanes * v.batch);
  const int64_t slots = sms * (1024 / config.threads);  // two blocks of 512 threads an SM
  int64_t pieces = std::min(batches, slots / std::max<int64_t>(config.tiles, 1));
  if (batches <= kMaxBatchesInOnePiece) pieces = 1;  // a second launch would take longer
  config.pieces = std::max({pieces, ceil_div(plan.extent, kStridedPiece), int64_t{1}});
  config.mail = config.pieces * config.lanes <= kMaxMail;
  config.reason = "strides that no wide load fits";
  return config;
}

Config config_for(const View& v, choose::Listing<Config>* listing) {
  const int64_t extent = v.plan.extent;
  if (extent == 0) return strided(v);
  if (fits_copy(v)) return {.kernel = Kernel::kCopy, .reason = "one element each"};
  if (fits_thin(v) && fits_rows(v) && extent <= most_of_thin_row(v)) return thin(v, listing);
  if (fits_thin(v) && extent == 1 && !stores_lanes(v.vector * element_size(result_of(v)))) {
    return thin(v, listing);
  }
  if (fits_groups(v)) return groups(v, listing);
  if (fits_rows(v)) return rows(v, listing);
  if (fits_columns(v)) return columns(v, listing);
  return fits_thin(v) && extent <= kThinStrided ? thin(v, listing) : strided(v);
}

}  // namespace

Config select_config(const ReduceProblem& problem, const Plan& plan, const DeviceInfo& device,
                     choose::Listing<Config>* listing) {
  if (plan.outputs == 0) return {};
  const View view{problem, plan, device};
  const auto complete = [&](Config& config) {
    config.sm90 =
        config.kernel == Kernel::kRowPieces ||
        (view.clusters() && (config.kernel == Kernel::kRows || config.kernel == Kernel::kColumns));
    const bool short_ones = config.kernel == Kernel::kShortRows ||
                            config.kernel == Kernel::kRaggedRows ||
                            config.kernel == Kernel::kTeamRows;
    config.streams = short_ones || view.bytes < kStreamedBytes;
    config.workspace_bytes = workspace_bytes(problem, plan, config);
  };
  Config config = config_for(view, listing);
  complete(config);
  for (size_t i = 0; i < choose::size_of(listing); ++i) complete((*listing)[i].choice);
  return config;
}

}  // namespace xgemm::cuda::reduce
