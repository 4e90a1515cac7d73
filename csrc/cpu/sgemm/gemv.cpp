// Few rows of A: bound by reading B, so B is read once, where it lies, in its own type.
#include <algorithm>

#include "common/math.h"
#include "cpu/buffer.h"
#include "cpu/sgemm/plan.h"

namespace xgemm::cpu::dense {
namespace {

// Sums of a chunk of columns, on the stack, and the chunk's columns: a multiple of every tile's.
constexpr int64_t kSumFloats = 2048;
constexpr int64_t kDotChunk = 48, kDotGrain = 12;

// Whether several rows are read fast where they lie. Each vector of a row that does not begin with
// a cache line takes two lines. Rows a multiple of 1 KB apart fall on few sets of the L1 cache.
bool reads_fast(const ConstMatrix& a) {
  return a.row_stride % 16 == 0 && a.row_stride % 256 != 0 &&
         reinterpret_cast<uintptr_t>(a.data) % 64 == 0;
}

// A's rows as fp32 with unit column stride: A itself where it is that, else a copy.
class Rows {
 public:
  Rows(const Product& p, const Kernels& table)
      : in_place_(p.a.dtype == DType::kF32 && p.a.col_stride == 1 && (p.m == 1 || reads_fast(p.a))),
        stride_(in_place_ ? p.a.row_stride : round_up<int64_t>(p.k, 16) + 16),
        copy_(Slot::kRows, in_place_ ? 0 : p.m * stride_),
        data_(in_place_ ? static_cast<const float*>(p.a.data) : copy_.data()) {
    if (in_place_) return;
    for (int64_t i = 0; i < p.m; ++i) {
      const ConstMatrix row{at(p.a, i, 0), p.a.dtype, p.a.row_stride, p.a.col_stride};
      table.pack(row, 1, p.k, 1, copy_.data() + i * stride_);
    }
  }
  const float* data() const { return data_; }
  int64_t stride() const { return stride_; }

 private:
  bool in_place_;
  int64_t stride_;
  Buffer copy_;
  const float* data_;
};

}  // namespace

void run_dot(const Product& p, const Plan& plan, const Kernels& table, const Parallel& parallel) {
  const Rows rows(p, table);
  const int64_t chunk = std::min(kDotChunk, kSumFloats / p.m / kDotGrain * kDotGrain);
  // This costs a B that is near up to a fifth (one row, Zen 4), and gives one that is not a third.
  const bool ahead = comes_from_memory(p);
  parallel.for_each(plan.threads_n, [&](int64_t thread) {
    alignas(64) float sums[kSumFloats];
    const Range mine = split_range(p.n, plan.threads_n, thread, 16);
    for (int64_t j = mine.begin; j < mine.end; j += chunk) {
      const int64_t cols = std::min(chunk, mine.end - j);
      table.dot_columns(p.m, cols, p.k, rows.data(), rows.stride(), at(p.b, 0, j), p.b.dtype,
                        p.b.col_stride, ahead, sums, chunk);
      table.finish(p, 0, j, p.m, cols, sums, chunk);
    }
  });
}

void run_add_rows(const Product& p, const Plan& plan, const Kernels& table,
                  const Parallel& parallel) {
  const Rows rows(p, table);
  // No wider than the product: the sums are cleared, which a small product would notice.
  const int64_t chunk = std::min(kSumFloats / p.m / 16 * 16, round_up<int64_t>(p.n, 16));
  parallel.for_each(plan.threads_n, [&](int64_t thread) {
    alignas(64) float sums[kSumFloats];
    const Range mine = split_range(p.n, plan.threads_n, thread, 16);
    for (int64_t j = mine.begin; j < mine.end; j += chunk) {
      const int64_t cols = std::min(chunk, mine.end - j);
      std::fill(sums, sums + p.m * chunk, 0.0f);
      table.add_rows(p.m, cols, p.k, rows.data(), rows.stride(), at(p.b, 0, j), p.b.dtype,
                     p.b.row_stride, sums, chunk);
      table.finish(p, 0, j, p.m, cols, sums, chunk);
    }
  });
}

}  // namespace xgemm::cpu::dense
