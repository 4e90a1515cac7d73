// Few rows and columns and a long k: parts of k are products of their own, whose sums are added.
#include "common/math.h"
#include "cpu/buffer.h"
#include "cpu/sgemm/plan.h"

namespace xgemm::cpu::dense {
namespace {

// A[:, part] B[part, :] alone, into `sums`.
Product part_of(const Product& p, const Range& part, float* sums, int64_t lds) {
  Product product;
  product.m = p.m;
  product.n = p.n;
  product.k = part.end - part.begin;
  product.a = p.a;
  product.a.data = at(p.a, 0, part.begin);
  product.b = p.b;
  product.b.data = at(p.b, part.begin, 0);
  product.d = {sums, DType::kF32, lds, 1};
  return product;
}

}  // namespace

void run_split_k(const Product& p, const Plan& plan, const Kernels& table,
                 const Parallel& parallel) {
  constexpr int64_t kLine = 16;  // floats
  const int64_t lds = round_up(p.n, kLine), floats = p.m * lds;
  Buffer buffer(Slot::kSplitK, plan.k_parts * floats);
  float* sums = buffer.data();
  parallel.for_each(plan.k_parts, [&](int64_t i) {
    const Range part = split_range(p.k, plan.k_parts, i, kLine);
    const Product product = part_of(p, part, sums + i * floats, lds);
    run_planned(product, make_plan_of_part(product, table), table, Parallel(1));
  });
  for (int64_t i = 0; i < p.m; ++i) {
    float* row = sums + i * lds;
    for (int64_t part = 1; part < plan.k_parts; ++part) {
      const float* added = row + part * floats;
      for (int64_t j = 0; j < p.n; ++j) row[j] += added[j];
    }
  }
  table.finish(p, 0, 0, p.m, p.n, sums, lds);
}

}  // namespace xgemm::cpu::dense
