#include "cpu/sgemm/plan.h"

#include <algorithm>

#include "common/math.h"

namespace xgemm::cpu::dense {
namespace {

// Up to this many rows B is streamed instead of packed.
constexpr int64_t kDotRows = 8;
constexpr int64_t kAddRowsRows = 4;
// A product of at most kSmallWork multiplications whose operands have at most kSmallPanel elements
// runs on one thread without packing what it can read in place.
constexpr int64_t kSmallWork = 64 * 64 * 64;
constexpr int64_t kSmallPanel = 128 * 128;
// The largest A that is packed whole.
constexpr int64_t kShortFloats = int64_t{4} << 20;
// Below this many multiplications a second thread costs more than it brings.
constexpr int64_t kParallelWork = 160 * 1024;

bool few_rows(const Product& p) {
  return p.b_source == nullptr && ((p.m <= kDotRows && p.b.row_stride == 1 && p.k > 1) ||
                                   (p.m <= kAddRowsRows && p.b.col_stride == 1));
}

bool should_transpose(const Product& p) {
  if (p.b_source != nullptr) return false;
  if (few_rows(p)) return false;
  if (few_rows(transpose(p))) return true;
  // The kernels write rows of D: let the contiguous direction be the rows.
  return p.d.row_stride == 1 && p.d.col_stride != 1;
}

// a * b, or the largest value where that does not fit.
int64_t saturating_product(int64_t a, int64_t b) {
  int64_t result;
  return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

// The grid of threads whose largest share of D, counted in register tiles, is the smallest; of
// equal ones that with the most threads along m, where a thread reads the fewest rows of A.
void choose_grid(const Product& p, const Blocking& blocking, int threads, Plan& plan) {
  const int64_t tiles_m = ceil_div<int64_t>(p.m, blocking.mr);
  const int64_t tiles_n = ceil_div<int64_t>(p.n, blocking.nr);
  int64_t best = INT64_MAX;
  for (int along_n = 1; along_n <= threads; ++along_n) {
    const int along_m = threads / along_n;
    const int64_t share = saturating_product(ceil_div<int64_t>(tiles_m, along_m),
                                             ceil_div<int64_t>(tiles_n, along_n));
    if (share >= best) continue;
    best = share;
    plan.threads_m = static_cast<int>(std::min<int64_t>(along_m, tiles_m));
    plan.threads_n = static_cast<int>(std::min<int64_t>(along_n, tiles_n));
  }
}

}  // namespace

Plan make_plan(const Product& original, const Kernels& table, int num_threads) {
  Plan plan;
  if (original.m == 0 || original.n == 0) return plan;
  plan.transposed = should_transpose(original);
  const Product p = plan.transposed ? transpose(original) : original;
  const int64_t mn = saturating_product(p.m, p.n);
  const int64_t work = saturating_product(mn, std::max<int64_t>(p.k, 1));
  const int threads = work < kParallelWork ? 1 : num_threads;
  plan.threads_n = static_cast<int>(std::min<int64_t>(threads, ceil_div<int64_t>(p.n, 16)));
  if (p.k == 0 || p.alpha == 0.0f) {
    plan.path = Path::kNoSum;
    plan.threads_n = 1;
    plan.threads_m = static_cast<int>(std::min<int64_t>(mn < kParallelWork ? 1 : threads, p.m));
  } else if (few_rows(p)) {
    plan.path = p.b.row_stride == 1 && p.k > 1 ? Path::kDot : Path::kAddRows;
  } else if (p.b_source == nullptr && work <= kSmallWork && p.m * p.k <= kSmallPanel &&
             p.n * p.k <= kSmallPanel) {
    plan.path = Path::kSmall;
    plan.threads_n = 1;
  } else if (p.m <= table.blocking.mc && p.k <= kShortFloats / p.m) {
    plan.path = Path::kShort;
  } else {
    plan.path = Path::kBlocked;
    choose_grid(p, table.blocking, threads, plan);
  }
  return plan;
}

const char* name_of(Path path) {
  constexpr const char* kNames[] = {"nothing", "no sum", "dot",    "add rows",
                                    "small",   "short",  "blocked"};
  return kNames[static_cast<int>(path)];
}

}  // namespace xgemm::cpu::dense
