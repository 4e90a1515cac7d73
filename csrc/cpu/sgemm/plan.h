// Which way a product is computed: a pure function of the problem, the kernels and the threads.
#pragma once

#include "cpu/sgemm/kernels.h"

namespace xgemm::cpu::dense {

enum class Path : int8_t {
  kNothing,  // D has no element
  kNoSum,    // k or alpha is 0: D = activation(beta C + bias)
  kDot,      // few rows of A, B contiguous along k: dot products, B is read once and never copied
  kAddRows,  // few rows of A, B contiguous along n: rows of B are added up, B is never copied
  kBf16,     // bf16 by its own instructions: both operands are packed into tiles
  kSmall,    // all fits in the caches, or B is a few columns: operands are read where they lie
  kShort,    // few blocks of rows: A packed whole, each thread packs the columns of B it owns
  kBlocked,  // Goto's loops: blocks of B shared by the threads or not, blocks of A packed by each
  kSplitK,   // few rows and columns, a long k: a product for each part of k, then their sums
};

struct Plan {
  Path path = Path::kNothing;
  bool transposed = false;           // computed as D^T = B^T A^T
  int threads_m = 1, threads_n = 1;  // the grid of threads over D
  bool apart = false;                // of kBlocked, kBf16: no thread reads what another packed
  int k_parts = 1;                   // of kSplitK; the same for any number of threads
};

// One product of the problem: its first, where it is a batch. B comes from `b` unless that is null.
Product product_of(const GemmProblem& problem, const PanelSource* b);

Plan make_plan(const Product& p, const Kernels& table, int num_threads);
// The plan of a part of k, which is not split again.
Plan make_plan_of_part(const Product& p, const Kernels& table);

const char* name_of(Path path);

// The ways, each for a product that already is transposed where the plan says so.
void run_no_sum(const Product& p, const Plan& plan, const Kernels& table, const Parallel& parallel);
void run_dot(const Product& p, const Plan& plan, const Kernels& table, const Parallel& parallel);
void run_add_rows(const Product& p, const Plan& plan, const Kernels& table,
                  const Parallel& parallel);
void run_bf16(const Product& p, const Plan& plan, const Kernels& table, const Parallel& parallel);
void run_small(const Product& p, const Plan& plan, const Kernels& table, const Parallel& parallel);
void run_short(const Product& p, const Plan& plan, const Kernels& table, const Parallel& parallel);
void run_blocked(const Product& p, const Plan& plan, const Kernels& table,
                 const Parallel& parallel);
void run_split_k(const Product& p, const Plan& plan, const Kernels& table,
                 const Parallel& parallel);

// Whether a product of bf16 is quicker to pack as D^T = B^T A^T.
bool bf16_transposes(const Product& p);

// One product, whichever way, or as its plan says.
void run_product(const Product& p, const Parallel& parallel);
void run_planned(const Product& p, const Plan& plan, const Kernels& table,
                 const Parallel& parallel);

}  // namespace xgemm::cpu::dense
