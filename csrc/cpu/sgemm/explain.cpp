// What a person reads about a product: its way, its kernel, its blocks.
#include <string>

#include "common/json.h"
#include "common/math.h"
#include "cpu/sgemm/bf16.h"
#include "cpu/sgemm/plan.h"

namespace xgemm::cpu {
namespace dense {
namespace {

std::string sizes(int64_t a, int64_t b) { return std::to_string(a) + "x" + std::to_string(b); }

Isa isa_of(const Plan& plan, const Kernels& table) {
  return plan.path == Path::kBf16 ? table.bf16->isa : table.isa;
}

const char* why(const Plan& plan) {
  switch (plan.path) {
    case Path::kNothing:
      return "D has no element";
    case Path::kNoSum:
      return "k or alpha is 0, A and B are not read";
    case Path::kDot:
      return "few rows and B contiguous along k: B is read once, in place";
    case Path::kAddRows:
      return "few rows and B contiguous along n: B is read once, in place";
    case Path::kBf16:
      return "both operands are packed into tiles of 16 by 32 k";
    case Path::kSmall:
      return "fits in the caches, or has few columns: operands are read in place where their "
             "strides allow";
    case Path::kShort:
      return "few rows: A packed whole, each thread packs its own columns of B";
    case Path::kBlocked:
      return plan.apart ? "packed blocks of A and of B for each thread"
                        : "packed blocks of A for each thread, of B for all of them";
    case Path::kSplitK:
      return "few rows and columns and a long k: each thread takes parts of k";
  }
  return "";
}

}  // namespace
}  // namespace dense

std::string explain_gemm(const GemmProblem& problem, int num_threads, const PanelSource* b) {
  using namespace dense;
  const Product p = product_of(problem, b);
  const Kernels& table = kernels();
  const Plan plan = make_plan(p, table, num_threads);
  const Blocking& blocking = table.blocking;
  std::string text = std::string("cpu dense, ") + name_of(isa_of(plan, table)) + ": " +
                     name_of(plan.path) + " (" + why(plan) + ")";
  if (plan.transposed) text += ", computed as D^T = B^T A^T";
  if (plan.path == Path::kSmall || plan.path == Path::kShort || plan.path == Path::kBlocked) {
    text += ", " + sizes(blocking.mr, blocking.nr) + " micro-kernel";
  }
  if (plan.path == Path::kShort || plan.path == Path::kBlocked) {
    const int64_t blocks = ceil_div<int64_t>(p.k, blocking.kc);
    text += ", KC " + std::to_string(ceil_div(p.k, blocks)) + " (" + std::to_string(blocks) +
            (blocks == 1 ? " block)" : " blocks)");
  }
  if (plan.path == Path::kBlocked) {
    text += ", MC " + std::to_string(blocking.mc) + ", NC " + std::to_string(blocking.nc);
  }
  if (plan.path == Path::kSplitK) text += ", " + std::to_string(plan.k_parts) + " parts of k";
  text += ", threads " + sizes(plan.threads_m, plan.threads_n);
  return text;
}

std::string explain_gemm_json(const GemmProblem& problem, int num_threads) {
  using namespace dense;
  const Product p = product_of(problem, nullptr);
  const Kernels& table = kernels();
  const Plan plan = make_plan(p, table, num_threads);
  const Blocking& blocking = table.blocking;
  JsonObject size, choice;
  size.add("m", problem.m)
      .add("n", problem.n)
      .add("k", problem.k)
      .add("dtype", name_of(problem.dtype))
      .add("threads", num_threads);
  choice.add("kernel", name_of(plan.path))
      .add("isa", name_of(isa_of(plan, table)))
      .add("transposed", plan.transposed)
      .add("mr", blocking.mr)
      .add("nr", blocking.nr)
      .add("mc", blocking.mc)
      .add("nc", blocking.nc)
      .add("kc", blocking.kc)
      .add("threads_m", plan.threads_m)
      .add("threads_n", plan.threads_n)
      .add("k_parts", plan.k_parts)
      .add("reason", why(plan));
  return rule_json("dense", size, choice);
}

}  // namespace xgemm::cpu
