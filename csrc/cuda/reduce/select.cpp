// Which kernel a reduction gets, and how it is cut up.
#include "cuda/reduce/select.h"

#include <algorithm>
#include <cstdint>

#include "cuda/reduce/model.h"
#include "cuda/reduce/params.h"

namespace xgemm::cuda::reduce {
namespace {

// One element each, which is the result, all behind one another, or whose position is.
bool fits_copy(const View& v) {
  if (v.plan.extent != 1) return false;
  if (finds_positions(v.problem.op)) return true;
  if (v.plan.kept.count != 1 || v.kept().in_stride != 1) return false;
  return v.problem.op != ReduceOp::kNorm &&
         reduce_output_dtype(v.problem.op, v.problem.in_dtype) == v.problem.in_dtype;
}

// Rows of several short runs, such as [64, 256, 49] over the first and the last: columns over the
// outer dimension, of which each run's are one output. By 247 random problems: runs of more bytes
// are read well one by one, a second launch pays from so many bytes on for each byte of a run
// (twice as many where runs are whole loads), and partial results of columns of fewer bytes take as
// long as the columns.
constexpr int64_t kMaxGroupRun = 64, kMinColumnBytes = 96;
constexpr double kMinGroupBytes = 2e6, kGroupBytesOfRun = 4e5;
constexpr int64_t kMaxGroupColumns = int64_t{1} << 22;

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

Config config_for(const View& v, choose::Listing<Config>* listing) {
  if (fits_copy(v)) return {.kernel = Kernel::kCopy, .reason = "one element each"};
  std::optional<choose::Scored<Config>> best;
  if (fits_groups(v)) {
    const Plan of_columns = columns_of_groups(v.plan);
    const View view{v.problem, of_columns, v.device, /*groups=*/true};
    const size_t first = choose::size_of(listing);
    best = choose::pick<Config>(Model(view), listing);
    choose::adjust(&best, listing, first, [&](Config& config, choose::Estimate&) {
      config.group = static_cast<int>(v.reduced().size);
      config.reason = "short runs: columns first";
    });
  } else {
    best = choose::pick<Config>(Model(v), listing);
  }
  return best ? best->choice : Config{};
}

}  // namespace

Config select_config(const ReduceProblem& problem, const Plan& plan, const DeviceInfo& device,
                     choose::Listing<Config>* listing) {
  if (plan.outputs == 0) return {};
  const View view{problem, plan, device};
  const auto complete = [&](Config& config) {
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
