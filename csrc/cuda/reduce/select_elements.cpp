// Element by element: few of each output by a thread, or any strides.
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "cuda/reduce/model.h"
#include "cuda/reduce/params.h"

namespace xgemm::cuda::reduce {
namespace {

constexpr int64_t kSector = 32, kLine = 128;         // bytes that are read together; of L1
constexpr int64_t kMaxThinRow = 192;                 // bytes: L1 holds one for each thread of an SM
constexpr int64_t kStridedPiece = int64_t{1} << 30;  // elements, at most

// Bytes of sectors that hold elements, for each of theirs.
double unread_of(const View& v) {
  const ReduceDim *near = &v.kept(), *far = &v.reduced();
  if (lies_inside(*far, *near)) std::swap(near, far);
  int64_t bytes = v.element;  // behind one another
  double unread = 1;
  for (const ReduceDim* dim : {near, far}) {
    const int64_t apart = dim->in_stride * v.element;
    if (dim->size <= 1 || apart == 0) continue;
    if (bytes < std::min(apart, kSector)) {
      unread *= static_cast<double>(std::min(apart, kSector)) / static_cast<double>(bytes);
    }
    bytes = std::max(bytes, apart) * dim->size;
  }
  return unread;
}

// Lines that the elements of `count` neighbours along some dimensions lie in.
double lines_of(const ReduceDims& dims, int64_t count, int64_t element) {
  double lines = 1;
  for (int d = dims.count - 1; d >= 0 && count > 1; --d) {
    const int64_t along = std::clamp<int64_t>(dims[d].size, 1, count);
    const int64_t apart = std::min(dims[d].in_stride * element, kLine);
    lines *= std::max(static_cast<double>(along * apart) / kLine, 1.0);
    count = ceil_div(count, along);
  }
  return lines;
}

// A thread for each output. Lanes whose rows begin at a multiple of a power of 2 want the same
// banks of L1.
void consider_thin(const View& v, Search& search) {
  const Plan& plan = v.plan;
  if (plan.kept.count > Params::kMaxKept || plan.reduced.count > 2) return;
  const bool rows = v.kept().in_stride != 1 && v.reduced().in_stride == 1;
  const int64_t row = v.reduced().size * v.element, apart = v.kept().in_stride * v.element;
  if (rows && row > kMaxThinRow) return;
  const bool few = v.small() && plan.extent <= kMaxShortColumnRows && v.bytes < kStreamedBytes;
  Candidate c;
  c.config.kernel = few ? Kernel::kShortColumns : Kernel::kThin;
  c.config.reason = "few elements: a thread each";
  c.work = {
      .loads = plan.extent,
      .resident = few ? 2048 : 1024,
      .unread = unread_of(v),
      .lines = rows ? static_cast<double>(apart % 4 == 0 ? std::gcd<int64_t>(apart / 4, 32) : 1)
                    : lines_of(plan.kept, 32, v.element)};
  for (int threads = kMaxThreadsOfElements; threads >= kMinThreads; threads /= 2) {
    c.config.threads = threads;
    c.config.tiles = ceil_div<int64_t>(plan.outputs, threads);
    c.work.run = rows ? row * threads : v.element * std::min<int64_t>(v.kept().size, threads);
    search.consider(c);
  }
}

// 32 columns by a block, of whose warps each takes other rows.
void consider_warp_columns(const View& v, Search& search) {
  if (!v.small() || v.bytes >= kStreamedBytes || v.kept().in_stride != 1) return;
  constexpr int kWarps = kWarpColumnsThreads / 32;
  Candidate c;
  c.config = {.kernel = Kernel::kWarpColumns,
              .threads = kWarpColumnsThreads,
              .tiles = ceil_div<int64_t>(v.plan.outputs, 32),
              .reason = "columns: a warp has 32"};
  c.work = {.loads = ceil_div<int64_t>(v.plan.extent, kWarps),
            .run = 32 * v.element,
            .lines = 1,
            .combines = kWarps};
  search.consider(c);
}

}  // namespace

void consider_few_elements(const View& v, Search& search) {
  if (v.groups || v.plan.outputs >= k31Bits) return;
  if (v.plan.extent == 0 || v.plan.extent > kMaxOfThread) return;
  consider_thin(v, search);
  consider_warp_columns(v, search);
}

// Threads are `lanes` adjacent outputs by other elements of theirs.
void consider_strided(const View& v, Search& search) {
  const Plan& plan = v.plan;
  if (v.groups) return;
  const int batch = in_flight(Kernel::kStrided, v.kind, v.problem.in_dtype);
  const int64_t fewest = std::max<int64_t>(ceil_div(plan.extent, kStridedPiece), 1);
  for (int lanes = 32; lanes >= 1; lanes /= 4) {
    const double lines =
        lines_of(plan.kept, lanes, v.element) * lines_of(plan.reduced, 32 / lanes, v.element);
    for (int threads = kMaxThreads; threads >= 32; threads /= 2) {
      const int64_t groups = threads / lanes;
      if (groups > 1 && threads > 32 && groups >= 2 * plan.extent) continue;
      Candidate c;
      c.config = {.kernel = Kernel::kStrided,
                  .threads = threads,
                  .lanes = lanes,
                  .tiles = ceil_div<int64_t>(plan.outputs, lanes),
                  .reason = "strides that no wide load fits"};
      c.work = {.batch = batch,
                .run = v.element * std::min<int64_t>(lanes, v.kept().size),
                .unread = unread_of(v),
                .lines = std::min(lines, 32.0),
                .shuffles = static_cast<double>(log2_of(32 / lanes)),
                .combines = threads / 32.0,
                .outputs_of_tile = lanes};
      const auto loads = [&](int64_t pieces) { return ceil_div(plan.extent, pieces * groups); };
      if (fewest > 1) {
        c.config.pieces = fewest, c.config.mail = fewest * lanes <= kMaxMail;
        c.work.loads = loads(fewest);
        search.consider(c);
      } else {
        consider_pieces(v, c, std::max<int64_t>(ceil_div(plan.extent, groups), 1), loads, search);
      }
    }
  }
}

}  // namespace xgemm::cuda::reduce
