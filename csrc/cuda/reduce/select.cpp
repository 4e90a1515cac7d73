// Which kernel a reduction gets, and how it is cut up.
#include "cuda/reduce/select.h"

#include <algorithm>
#include <cstdint>

#include "common/math.h"
#include "cuda/reduce/families.h"

namespace xgemm::cuda::reduce {
namespace {

constexpr int kStridedThreads = 256;
// Elements that a thread should have to itself, of ragged rows and at any strides.
constexpr int64_t kThinRow = 10, kThinStrided = 16;
constexpr int64_t kFewBatches = 4;
constexpr int64_t kStridedPiece = int64_t{1} << 30;  // elements, at most

// One element each, which is the result or whose position is, and all behind one another. (Results
// always are.)
bool fits_copy(const View& v) {
  const ReduceOp op = v.problem.op;
  if (v.plan.extent != 1 || v.plan.kept.count != 1 || v.kept().in_stride != 1) return false;
  if (finds_positions(op)) return true;
  return op != ReduceOp::kNorm && reduce_output_dtype(op, v.problem.in_dtype) == v.problem.in_dtype;
}

Config strided(const View& v) {
  Config config{.kernel = Kernel::kStrided, .threads = kStridedThreads};
  const Plan& plan = v.plan;
  const int64_t sms = v.device.sm_count;
  const bool across = v.kept().size > 1 && !lies_inside(v.reduced(), v.kept());
  // Adjacent outputs to adjacent threads where their elements lie closest, or where an output has
  // too few for a block.
  int64_t lanes = across ? std::min<int64_t>(pow2_ceil(v.kept().size), 32) : 1;
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
  if (batches <= kFewBatches) pieces = 1;  // a second launch would take longer
  config.pieces = std::max({pieces, ceil_div(plan.extent, kStridedPiece), int64_t{1}});
  config.mail = config.pieces * config.lanes <= kMostMail;
  config.reason = "strides that no wide load fits";
  return config;
}

Config choose(const View& v) {
  const int64_t extent = v.plan.extent;
  if (extent == 0) return strided(v);
  if (fits_copy(v)) return {.kernel = Kernel::kCopy, .reason = "one element each"};
  // Short rows of whole loads have a kernel, but for rare kinds.
  const bool whole = v.all_aligned(false) && extent % v.vector == 0 && !v.few_kernels();
  if (fits_thin(v) && (extent == 1 || (fits_rows(v) && !whole && extent <= kThinRow))) {
    return thin(v);
  }
  if (fits_groups(v)) return groups(v);
  if (fits_rows(v)) return rows(v);
  if (fits_columns(v)) return columns(v);
  return fits_thin(v) && extent <= kThinStrided ? thin(v) : strided(v);
}

}  // namespace

Config select_config(const ReduceProblem& problem, const Plan& plan, const DeviceInfo& device) {
  if (plan.outputs == 0) return {};
  const View view{problem, plan, device};
  Config config = choose(view);
  config.sm90 =
      view.clusters() && (config.kernel == Kernel::kRows || config.kernel == Kernel::kColumns);
  const bool short_ones = config.kernel == Kernel::kShortRows ||
                          config.kernel == Kernel::kRaggedRows ||
                          config.kernel == Kernel::kTeamRows;
  config.streams = short_ones || view.bytes < kStreamedBytes;
  config.workspace_bytes = workspace_bytes(problem, plan, config);
  return config;
}

}  // namespace xgemm::cuda::reduce
