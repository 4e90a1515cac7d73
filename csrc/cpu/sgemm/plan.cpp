#include "cpu/sgemm/plan.h"

#include <algorithm>

#include "common/math.h"
#include "cpu/sgemm/bf16.h"

namespace xgemm::cpu::dense {
namespace {

// A product of at most kSmallWork multiplications whose operands have at most kSmallPanel elements
// runs on one thread without packing what it can read in place.
constexpr int64_t kSmallWork = 64 * 64 * 64;
constexpr int64_t kSmallPanel = 128 * 128;
// With masked columns and a B that is read in place, products up to the size of these squares are
// faster unpacked, the larger ones where the L2 cache has kLargeL2 and a step of k is not in
// another page (Zen 4 with 1 MiB, Xeon with 2 MiB, bench_cpu.py).
constexpr int64_t kUnpackedSquare = 200, kUnpackedSquareLargeL2 = 448;
constexpr int64_t kLargeL2 = int64_t{1} << 20;
// The most columns and bytes of a B that each thread packs whole beside an A that is read in place,
// and the least k: below it, tiles of D take as long to store. (Zen 4: 48 rows of 4096 x 11008, X
// of 2 MB, 1.27x as fast, 64 of 2048 x 14336 1.09x.)
constexpr int64_t kFewColumns = 96, kFewColumnsBytes = int64_t{4} << 20, kFewColumnsK = 256;
// Up to so many tiles of rows, and elements of B, B is read in place whatever the work.
constexpr int64_t kOnceTiles = 3, kOncePanel = int64_t{1} << 18;
// The largest A that is packed whole: rows, more where B is transposed and does not come from the
// L2 cache (a panel at a time then, which is used at once), and elements.
constexpr int64_t kShortRows = 192, kShortRowsFar = 448;
constexpr int64_t kShortFloats = int64_t{4} << 20;
// Rows or columns of D, for each thread but one, from which each packs all that it reads for
// itself.
constexpr int64_t kApartExtent = 400;
// Below this many multiplications a second thread costs more than it brings.
constexpr int64_t kParallelWork = 160 * 1024;
// Tiles of bf16 take products of at least so many multiplications, and at most so large a k, all of
// which is packed at once.
constexpr int64_t kBf16Work = 16 * 16 * 32;
constexpr int64_t kBf16K = int64_t{1} << 17;
// Multiplications below which a second thread costs more than it brings.
constexpr int64_t kBf16ParallelWork = int64_t{2} << 20;
// Columns for which it pays to gather rows of A.
constexpr int64_t kGatherColumns = 256;
// A D of at most so many rows and columns has too few tiles for the threads: k is split.
constexpr int64_t kSplitExtent = 64, kSplitK = 4096;
// Into at most kMaxSplits parts of at least kSplitSteps, or into parts whose operands are read
// where they lie.
constexpr int64_t kSplitSteps = 2048, kMaxSplits = 16, kSplitInPlaceSteps = 512;

// a * b, or the largest value where that does not fit.
int64_t saturating_product(int64_t a, int64_t b) {
  int64_t result;
  return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

int64_t work_of(const Product& p) {
  return saturating_product(saturating_product(p.m, p.n), std::max<int64_t>(p.k, 1));
}

// Up to how many rows dot products are faster than packing (Xeon with AVX-512, bench_cpu.py).
int64_t dot_rows(const Product& p, const Kernels& table) {
  int64_t rows = table.dot_rows;
  if (comes_from_memory(p)) rows = std::min<int64_t>(rows, table.dot_rows_from_memory);
  const bool aligned = p.b.dtype != DType::kF32 || p.b.col_stride % 16 == 0;
  return aligned ? rows : std::min<int64_t>(rows, table.dot_rows_unaligned);
}

// Whether A is read in place, as packing it would take long for few columns of B, which each thread
// packs whole. Both lie along k. (Xeon and Zen 4, bench_cpu.py: 64 rows of a linear are 1.05x
// to 1.2x as fast.)
bool has_few_columns(const Product& p, const Kernels& table) {
  const bool reads = table.masks_columns && cache_sizes().l2 >= kLargeL2 && p.b_source == nullptr &&
                     p.a.dtype == DType::kF32 && p.b.dtype == DType::kF32 && p.a.col_stride == 1 &&
                     p.b.row_stride == 1;
  constexpr int64_t kFloat = sizeof(float);
  if (!reads || p.n > std::min(kFewColumns, p.m) || p.k < kFewColumnsK ||
      p.k > kFewColumnsBytes / kFloat / p.n) {
    return false;
  }
  const int64_t rest = p.n % table.blocking.nr;
  const int64_t idle = rest == 0 ? 0 : (table.blocking.nr >> (2 - width_of(table, rest))) - rest;
  return idle <= p.n / 8;
}

bool streams_along_k(const Product& p, const Kernels& table) {
  // Tiles that have no idle lanes are faster (32 and 48 rows 1.05x to 1.3x, 24 and 40 0.8x
  // to 1.0x).
  if (p.m >= 32 && p.m % 16 == 0 && has_few_columns(transpose(p), table)) return false;
  // Rows of A whose elements are apart are gathered: too long for few columns.
  const bool gathers = p.m > 4 && p.a.col_stride != 1;
  return p.b_source == nullptr && p.b.row_stride == 1 && p.k > 1 && p.m <= dot_rows(p, table) &&
         (!gathers || p.n >= kGatherColumns);
}
bool streams_along_n(const Product& p, const Kernels& table) {
  return p.b_source == nullptr && p.m <= table.add_rows_rows && p.b.col_stride == 1;
}
bool streams(const Product& p, const Kernels& table) {
  return streams_along_k(p, table) || streams_along_n(p, table);
}

// The square up to whose size products are not packed.
int64_t unpacked_square(const Product& p) {
  const bool large = cache_sizes().l2 >= kLargeL2 && p.b.row_stride <= kUnpackedSquareLargeL2 &&
                     p.a.col_stride <= kUnpackedSquareLargeL2;
  return large ? kUnpackedSquareLargeL2 : kUnpackedSquare;
}

bool is_small(const Product& p, const Kernels& table) {
  // One block of k: the sums are those of the packed ways, bit for bit.
  const bool unpacked = table.masks_columns && p.b_source == nullptr && p.k <= table.blocking.kc &&
                        p.a.dtype == DType::kF32 && p.b.dtype == DType::kF32 && p.b.col_stride == 1;
  const int64_t square = unpacked_square(p);
  const int64_t panel = unpacked ? square * square : kSmallPanel;
  if (std::min(p.m, p.n) <= table.add_rows_rows || saturating_product(p.m, p.k) > panel) {
    return false;
  }
  const int64_t b = saturating_product(p.n, p.k);
  // Each panel of B is used for so few tiles that a copy does not pay.
  if (unpacked && p.m <= kOnceTiles * table.blocking.mr && b <= kOncePanel) return true;
  return work_of(p) <= (unpacked ? square * square * square : kSmallWork) && b <= panel;
}

bool by_bf16(const Product& p, const Kernels& table) {
  return table.bf16 != nullptr && p.b_source == nullptr && p.a.dtype == DType::kBF16 &&
         std::min(p.m, p.n) >= table.bf16->least_extent && p.k <= kBf16K && work_of(p) >= kBf16Work;
}

bool should_transpose(const Product& p, const Kernels& table) {
  if (p.b_source != nullptr) return false;
  if (by_bf16(p, table)) return bf16_transposes(p);
  if (!is_small(p, table)) {
    if (streams(p, table)) return false;
    if (streams(transpose(p), table)) return true;
    if (has_few_columns(p, table)) return false;
    if (has_few_columns(transpose(p), table)) return true;
  }
  // The kernels write rows of D: let the contiguous direction be the rows.
  return p.d.row_stride == 1 && p.d.col_stride != 1;
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

// Whether the threads, along the longer side of D, share no packed operand: one packs the shorter
// side's whole, but reads no line that another wrote, and none waits for another. (Zen 4, two
// threads: squares of 600 to 1500 1.03x to 1.10x as fast while the cores share no L3 cache, 0.99x
// to 1.01x else.)
bool threads_apart(const Product& p, const Blocking& blocking, int threads) {
  const int64_t columns = std::min<int64_t>(p.n, blocking.nc);
  const int64_t floats = columns * std::min<int64_t>(p.k, blocking.kc);
  return threads > 1 && p.b_source == nullptr &&
         (threads - 1) * kApartExtent <= std::max(p.m, p.n) &&
         threads * floats * static_cast<int64_t>(sizeof(float)) <= half_l3();
}

// The same for bf16, where what each thread packs fits its L2 cache. (Zen 4, two threads: squares
// of 128 to 512 1.2x to 2.0x as fast while the cores share no L3 cache; from 1024 on no gain.)
bool bf16_threads_apart(const Product& p, const Bf16Kernels& kernels, int threads) {
  return threads > 1 && kernels.apart_extent > 0 &&
         (threads - 1) * kernels.apart_extent <= std::max(p.m, p.n) &&
         p.k <= cache_sizes().l2 / element_size(DType::kBF16) / std::min(p.m, p.n);
}

bool splits_k(const Product& p) {
  return p.b_source == nullptr && p.m > 0 && p.n > 0 && p.alpha != 0.0f && p.m <= kSplitExtent &&
         p.n <= kSplitExtent && p.k >= kSplitK;
}

int split_parts(const Product& p, const Kernels& table) {
  Product part = p;
  part.k = kSplitInPlaceSteps;
  const bool in_place = table.masks_columns && is_small(part, table) && !by_bf16(p, table);
  const int64_t parts =
      in_place ? ceil_div(p.k, kSplitInPlaceSteps) : std::min(kMaxSplits, p.k / kSplitSteps);
  return static_cast<int>(std::min<int64_t>(parts, int64_t{1} << 20));
}

// The plan of a product whose k is not split.
Plan make_plan_whole(const Product& original, const Kernels& table, int num_threads) {
  Plan plan;
  if (original.m == 0 || original.n == 0) return plan;
  plan.transposed = should_transpose(original, table);
  const Product p = plan.transposed ? transpose(original) : original;
  const int64_t mn = saturating_product(p.m, p.n);
  const bool transposes_b = p.b_source == nullptr && p.b.row_stride == 1;
  const int threads = work_of(p) < kParallelWork ? 1 : num_threads;
  plan.threads_n = static_cast<int>(std::min<int64_t>(threads, ceil_div<int64_t>(p.n, 16)));
  if (p.k == 0 || p.alpha == 0.0f) {
    plan.path = Path::kNoSum;
    plan.threads_n = 1;
    plan.threads_m = static_cast<int>(std::min<int64_t>(mn < kParallelWork ? 1 : threads, p.m));
  } else if (by_bf16(p, table)) {
    plan.path = Path::kBf16;
    plan.threads_n = 1;
    const int64_t blocks = ceil_div<int64_t>(std::max(p.m, p.n), 32);
    if (work_of(p) >= kBf16ParallelWork) {
      plan.threads_m = static_cast<int>(std::min<int64_t>(threads, blocks));
    }
    plan.apart = bf16_threads_apart(p, *table.bf16, plan.threads_m);
  } else if (is_small(p, table)) {
    plan.path = Path::kSmall;
    plan.threads_n = 1;
    if (work_of(p) > kSmallWork) choose_grid(p, table.blocking, threads, plan);
  } else if (streams_along_k(p, table)) {
    plan.path = Path::kDot;
  } else if (streams_along_n(p, table)) {
    plan.path = Path::kAddRows;
  } else if (has_few_columns(p, table)) {
    plan.path = Path::kSmall;
    plan.threads_n = 1;
    plan.threads_m = threads;
  } else if (p.m <= (transposes_b && exceeds_l2(p) ? kShortRowsFar : kShortRows) &&
             p.k <= kShortFloats / p.m) {
    plan.path = Path::kShort;
  } else {
    plan.path = Path::kBlocked;
    plan.apart = threads_apart(p, table.blocking, threads);
    if (plan.apart) {
      plan.threads_m = p.m >= p.n ? threads : 1;
      plan.threads_n = p.m >= p.n ? 1 : threads;
    } else {
      choose_grid(p, table.blocking, threads, plan);
    }
  }
  return plan;
}

}  // namespace

Product product_of(const GemmProblem& problem, const PanelSource* b) {
  const auto matrix_of = [&](const GemmOperand& x) {
    return ConstMatrix{x.data, problem.dtype, x.row_stride, x.col_stride};
  };
  Product p;
  p.m = problem.m;
  p.n = problem.n;
  p.k = problem.k;
  p.a = matrix_of(problem.a);
  p.b = matrix_of(problem.b);
  p.b_source = b;
  p.c = matrix_of(problem.c);
  p.d = {problem.d, problem.dtype, problem.d_row_stride, problem.d_col_stride};
  p.bias = {problem.bias, problem.dtype, 0, problem.bias_stride};
  p.alpha = problem.alpha;
  p.beta = problem.beta;
  p.activation = problem.activation;
  return p;
}

Plan make_plan(const Product& p, const Kernels& table, int num_threads) {
  if (splits_k(p)) {
    Plan plan;
    plan.path = Path::kSplitK;
    plan.k_parts = split_parts(p, table);
    plan.threads_n = std::min(num_threads, plan.k_parts);
    return plan;
  }
  return make_plan_whole(p, table, num_threads);
}

Plan make_plan_of_part(const Product& p, const Kernels& table) {
  return make_plan_whole(p, table, 1);
}

const char* name_of(Path path) {
  constexpr const char* kNames[] = {"nothing", "no sum", "dot",     "add rows", "bf16 tiles",
                                    "small",   "short",  "blocked", "split-K"};
  return kNames[static_cast<int>(path)];
}

}  // namespace xgemm::cpu::dense
