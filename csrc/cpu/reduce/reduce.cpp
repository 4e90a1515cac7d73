#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>

#include "common/math.h"
#include "cpu/isa/isa.h"
#include "cpu/reduce/api.h"
#include "cpu/reduce/kernel_table.h"
#include "cpu/reduce/plan.h"

namespace xgemm::cpu {
namespace reduce_detail {
namespace {

constexpr int64_t kMaxAccBytes = 16;
constexpr int64_t kGatherBytes = 16384;   // elements that lie apart are brought together in this
constexpr int64_t kTaskElements = 32768;  // less is not worth waking a thread for
constexpr int64_t kFewColumns = 32;
constexpr int64_t kWideColumns = 256;
constexpr int64_t kScratchOnStack = 4096;  // bytes of the pieces' results

Kind norm_kind(double p) {
  if (p == 0) return Kind::kNormZero;
  if (p == 1) return Kind::kNormOne;
  if (p == 2) return Kind::kNormTwo;
  if (std::isinf(p)) return p > 0 ? Kind::kNormMaxAbs : Kind::kNormMinAbs;
  if (std::fabs(p) <= kMaxIntPower && p == std::trunc(p)) return Kind::kNormInt;
  return Kind::kNormAny;
}

Kind kind_of(const ReduceProblem& problem) {
  switch (problem.op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return Kind::kSum;
    case ReduceOp::kProd:
      return Kind::kProd;
    case ReduceOp::kAmax:
      return Kind::kAmax;
    case ReduceOp::kAmin:
      return Kind::kAmin;
    case ReduceOp::kNorm:
      return norm_kind(problem.p);
    case ReduceOp::kArgmax:
      return Kind::kArgmax;
    case ReduceOp::kArgmin:
      return Kind::kArgmin;
  }
  return Kind::kSum;
}

template <typename T>
void gather(const char* src_, int64_t outer_stride, int64_t inner_stride, int64_t outer,
            int64_t inner, char* dst_) {
  const T* src = reinterpret_cast<const T*>(src_);
  T* dst = reinterpret_cast<T*>(dst_);
  for (int64_t i = 0; i < outer; ++i, src += outer_stride) {
    for (int64_t j = 0; j < inner; ++j) *dst++ = src[j * inner_stride];
  }
}

struct Run {
  const ReduceProblem& problem;
  const Plan& plan;
  const Kernels& kernels;
  Params params;
  int64_t elem;  // bytes of an element

  // dst[i][j] = src[i * outer_stride + j * inner_stride]
  void gather_block(const char* src, int64_t outer_stride, int64_t inner_stride, int64_t outer,
                    int64_t inner, char* dst) const {
    switch (elem) {
      case 1:
        return gather<uint8_t>(src, outer_stride, inner_stride, outer, inner, dst);
      case 2:
        return gather<uint16_t>(src, outer_stride, inner_stride, outer, inner, dst);
      case 4:
        return gather<uint32_t>(src, outer_stride, inner_stride, outer, inner, dst);
      default:
        return gather<uint64_t>(src, outer_stride, inner_stride, outer, inner, dst);
    }
  }

  // Folds x[outputs][n] (strides kept_stride, reduced_stride) into acc[outputs].
  void fold(const char* x, int64_t kept_stride, int64_t reduced_stride, int64_t outputs, int64_t n,
            char* acc, int64_t base) const {
    if (plan.direction == Direction::kRows && (reduced_stride == 1 || n == 1)) {
      return kernels.rows(x, kept_stride, outputs, n, acc, base, params);
    }
    if (plan.direction == Direction::kColumns && (kept_stride == 1 || outputs == 1)) {
      if (outputs <= kFewColumns && reduced_stride == outputs && !positions() &&
          n >= kWideColumns) {
        return fold_few_columns(x, outputs, n, acc);
      }
      return kernels.cols(x, reduced_stride, n, outputs, acc, base, params);
    }
    alignas(64) char block[kGatherBytes];
    const int64_t room = kGatherBytes / elem;
    if (plan.direction == Direction::kRows) {
      const int64_t run = std::min(n, room);
      const int64_t many = std::max<int64_t>(room / run, 1);
      for (int64_t r = 0; r < outputs; r += many) {
        const int64_t rows = std::min(many, outputs - r);
        for (int64_t i = 0; i < n; i += run) {
          const int64_t length = std::min(run, n - i);
          gather_block(x + (r * kept_stride + i * reduced_stride) * elem, kept_stride,
                       reduced_stride, rows, length, block);
          kernels.rows(block, length, rows, length, acc + r * kernels.acc_bytes, base + i, params);
        }
      }
      return;
    }
    const int64_t many = room / outputs;  // kMaxTile elements fit, so at least one row does
    for (int64_t i = 0; i < n; i += many) {
      const int64_t rows = std::min(many, n - i);
      gather_block(x + i * reduced_stride * elem, reduced_stride, kept_stride, rows, outputs,
                   block);
      kernels.cols(block, outputs, rows, outputs, acc, base + i, params);
    }
  }

  bool positions() const {
    return problem.op == ReduceOp::kArgmax || problem.op == ReduceOp::kArgmin;
  }

  // Columns too few to fill vectors: several rows that follow each other are taken for one.
  void fold_few_columns(const char* x, int64_t cols, int64_t n, char* acc) const {
    alignas(64) char wide[kWideColumns * kMaxAccBytes];
    const int64_t together = kWideColumns / cols;
    const int64_t rows = n / together;
    kernels.init(wide, together * cols);
    kernels.cols(x, together * cols, rows, together * cols, wide, 0, params);
    for (int64_t i = 0; i < together; ++i) {
      kernels.combine(acc, wide + i * cols * kernels.acc_bytes, cols);
    }
    const int64_t done = rows * together;
    kernels.cols(x + done * cols * elem, cols, n - done, cols, acc, done, params);
  }

  struct Tile {
    int64_t in_offset, out_offset;  // elements
    int64_t outputs;
  };

  Tile tile_at(int64_t tile) const {
    const ReduceDims& kept = plan.kept;
    const ReduceDim& inner = kept[kept.count - 1];
    const int64_t first = tile % plan.tiles_inner * plan.tile;
    int64_t rest = tile / plan.tiles_inner;
    Tile at = {first * inner.in_stride, first * inner.out_stride,
               std::min(plan.tile, inner.size - first)};
    for (int d = kept.count - 2; d >= 0 && rest > 0; --d) {
      const int64_t index = rest % kept[d].size;
      rest /= kept[d].size;
      at.in_offset += index * kept[d].in_stride;
      at.out_offset += index * kept[d].out_stride;
    }
    return at;
  }

  // Reduces the elements [begin, end) of a tile's reduced extent into acc.
  void accumulate(const Tile& tile, int64_t begin, int64_t end, char* acc) const {
    kernels.init(acc, tile.outputs);
    const ReduceDims& reduced = plan.reduced;
    const ReduceDim& inner = reduced[reduced.count - 1];
    const int64_t kept_stride = plan.kept[plan.kept.count - 1].in_stride;
    for (int64_t at = begin; at < end;) {
      const int64_t first = at % inner.size;
      const int64_t n = std::min(inner.size - first, end - at);
      int64_t offset = tile.in_offset + first * inner.in_stride;
      int64_t rest = at / inner.size;
      for (int d = reduced.count - 2; d >= 0 && rest > 0; --d) {
        offset += rest % reduced[d].size * reduced[d].in_stride;
        rest /= reduced[d].size;
      }
      fold(static_cast<const char*>(problem.in) + offset * elem, kept_stride, inner.in_stride,
           tile.outputs, n, acc, at);
      at += n;
    }
  }

  void store(const Tile& tile, const char* acc) const {
    const int64_t out_elem = element_size(reduce_output_dtype(problem.op, problem.in_dtype));
    kernels.store(acc, tile.outputs, static_cast<char*>(problem.out) + tile.out_offset * out_elem,
                  plan.kept[plan.kept.count - 1].out_stride, params);
  }

  // Calls body(i) for i in [0, count), on threads where there is enough to do.
  template <typename F>
  void spread(int64_t count, int64_t elements, const Parallel& parallel, F&& body) const {
    const int64_t tasks =
        std::min({count, elements / kTaskElements, int64_t(parallel.num_threads()) * 8});
    if (tasks <= 1 || parallel.num_threads() == 1) {
      for (int64_t i = 0; i < count; ++i) body(i);
      return;
    }
    parallel.for_each(tasks, [&](int64_t task) {
      const Range range = split_range(count, tasks, task);
      for (int64_t i = range.begin; i < range.end; ++i) body(i);
    });
  }

  void whole_tiles(const Parallel& parallel) const {
    spread(plan.tiles, plan.outputs * plan.extent, parallel, [&](int64_t i) {
      alignas(64) char acc[kMaxTile * kMaxAccBytes];
      const Tile tile = tile_at(i);
      accumulate(tile, 0, plan.extent, acc);
      store(tile, acc);
    });
  }

  void in_pieces(const Parallel& parallel) const {
    const int64_t slot = plan.tile * kernels.acc_bytes;
    const int64_t bytes = plan.tiles * plan.pieces * slot;
    alignas(64) char on_stack[kScratchOnStack];
    std::unique_ptr<char[]> on_heap;
    if (bytes > kScratchOnStack) on_heap.reset(new char[size_t(bytes)]);
    char* scratch = on_heap ? on_heap.get() : on_stack;
    spread(plan.tiles * plan.pieces, plan.outputs * plan.extent, parallel, [&](int64_t i) {
      const Range range = split_range(plan.extent, plan.pieces, i % plan.pieces);
      accumulate(tile_at(i / plan.pieces), range.begin, range.end, scratch + i * slot);
    });
    spread(plan.tiles, plan.outputs * plan.pieces, parallel, [&](int64_t i) {
      const Tile tile = tile_at(i);
      char* acc = scratch + i * plan.pieces * slot;
      for (int64_t piece = 1; piece < plan.pieces; ++piece) {
        kernels.combine(acc, acc + piece * slot, tile.outputs);
      }
      store(tile, acc);
    });
  }
};

const Kernels* pick_kernels(Kind kind, DType dtype) {
  if (isa() >= Isa::kAvx512) return avx512_kernels(kind, dtype);
  return isa() >= Isa::kAvx2 ? avx2_kernels(kind, dtype) : generic_kernels(kind, dtype);
}

}  // namespace
}  // namespace reduce_detail

void reduce(const ReduceProblem& problem, const Parallel& parallel) {
  using namespace reduce_detail;
  const Plan plan = make_plan(problem);
  if (plan.outputs == 0) return;
  const Kernels* kernels = pick_kernels(kind_of(problem), problem.in_dtype);
  Params params{.p = problem.p};
  if (problem.op == ReduceOp::kMean) params.divisor = double(plan.extent);
  const int64_t elem = element_size(problem.in_dtype);
  params.in_bytes = plan.outputs * plan.extent * elem;
  const Run run{problem, plan, *kernels, params, elem};
  if (plan.pieces == 1) {
    run.whole_tiles(parallel);
  } else {
    run.in_pieces(parallel);
  }
}

}  // namespace xgemm::cpu
