// The family's entry: one product or a batch of them.
#include <algorithm>
#include <string>

#include "cpu/isa/isa.h"
#include "cpu/sgemm/plan.h"

namespace xgemm::cpu {
namespace dense {
namespace {

// Products of at most this many multiplications are spread over the threads whole.
constexpr int64_t kWholeWork = 256 * 256 * 256;

template <typename M>
void advance(M& x, int64_t elements) {
  x.data = const_cast<char*>(static_cast<const char*>(x.data)) + elements * element_size(x.dtype);
}

// The operands of the index-th product of the batch.
Product product_at(const Product& first, const GemmProblem& problem, int64_t index) {
  Product p = first;
  for (int d = problem.batch_dims - 1; d >= 0; --d) {
    const BatchDim& dim = problem.batch[d];
    const int64_t i = index % dim.size;
    index /= dim.size;
    advance(p.a, i * dim.a);
    advance(p.b, i * dim.b);
    if (p.beta != 0.0f) advance(p.c, i * dim.c);
    advance(p.d, i * dim.d);
  }
  return p;
}

int64_t batch_count(const GemmProblem& problem) {
  int64_t count = 1;
  for (int d = 0; d < problem.batch_dims; ++d) count *= problem.batch[d].size;
  return count;
}

bool spread_whole(const Product& p, int64_t count, int threads) {
  if (threads == 1 || count < 2) return false;
  // Many products, or products too small to share: a thread takes each of them whole.
  return count >= 4 * int64_t{threads} ||
         static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) <=
             static_cast<double>(kWholeWork);
}

}  // namespace

void run_product(const Product& p, const Parallel& parallel) {
  const Kernels& table = kernels();
  run_planned(p, make_plan(p, table, parallel.num_threads()), table, parallel);
}

void run_planned(const Product& original, const Plan& plan, const Kernels& table,
                 const Parallel& parallel) {
  const Product p = plan.transposed ? transpose(original) : original;
  switch (plan.path) {
    case Path::kNothing:
      return;
    case Path::kNoSum:
      return run_no_sum(p, plan, table, parallel);
    case Path::kDot:
      return run_dot(p, plan, table, parallel);
    case Path::kAddRows:
      return run_add_rows(p, plan, table, parallel);
    case Path::kBf16:
      return run_bf16(p, plan, table, parallel);
    case Path::kSmall:
      return run_small(p, plan, table, parallel);
    case Path::kShort:
      return run_short(p, plan, table, parallel);
    case Path::kBlocked:
      return run_blocked(p, plan, table, parallel);
    case Path::kSplitK:
      return run_split_k(p, plan, table, parallel);
  }
}

void run_no_sum(const Product& p, const Plan& plan, const Kernels& table,
                const Parallel& parallel) {
  constexpr int64_t kColumns = 512;
  alignas(64) static constexpr float kZeros[kColumns] = {};
  Product scaled = p;
  scaled.alpha = 1.0f;  // an infinite alpha times no sum is no NaN
  parallel.for_each(plan.threads_m, [&](int64_t thread) {
    const Range mine = split_range(p.m, plan.threads_m, thread);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      for (int64_t j = 0; j < p.n; j += kColumns) {
        table.finish(scaled, i, j, 1, std::min(kColumns, p.n - j), kZeros, kColumns);
      }
    }
  });
}

}  // namespace dense

void gemm(const GemmProblem& problem, const Parallel& parallel, const PanelSource* b) {
  const dense::Product first = dense::product_of(problem, b);
  if (problem.batch_dims == 0) return dense::run_product(first, parallel);
  const int64_t count = dense::batch_count(problem);
  const int threads = parallel.num_threads();
  if (!dense::spread_whole(first, count, threads)) {
    for (int64_t i = 0; i < count; ++i) {
      dense::run_product(dense::product_at(first, problem, i), parallel);
    }
    return;
  }
  parallel.for_each(std::min<int64_t>(threads, count), [&](int64_t task) {
    const Parallel alone(1);
    const Range mine = split_range(count, std::min<int64_t>(threads, count), task);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      dense::run_product(dense::product_at(first, problem, i), alone);
    }
  });
}

}  // namespace xgemm::cpu
