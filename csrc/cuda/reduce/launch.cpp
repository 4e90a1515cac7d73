#include <algorithm>
#include <cmath>

#include "common/math.h"
#include "cuda/nonce.h"
#include "cuda/ptx/l2_policy.h"
#include "cuda/reduce/api.h"
#include "cuda/reduce/instances.h"
#include "cuda/reduce/select.h"

namespace xgemm::cuda::reduce {
namespace {

constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;       // of a grid
constexpr int64_t kMaxShortRows = int64_t{1} << 30;          // of a launch
constexpr uint32_t kMaxOfPiecesBlock = 1024;                 // partial results of groups
constexpr uint32_t kNeverReached = (uint32_t{1} << 31) - 1;  // a divisor that gives 0

const void* advance(const void* data, DType dtype, int64_t elements) {
  return static_cast<const char*>(data) + elements * element_size(dtype);
}

BitTransform transform_of(const ReduceProblem& problem) {
  BitTransform t;
  uint32_t sign = 0x80008000u;  // of every element of a word
  if (problem.in_dtype == DType::kF32 || problem.in_dtype == DType::kF64) sign = 0x80000000u;
  const uint32_t sign_low = problem.in_dtype == DType::kF64 ? 0 : sign;
  const bool norm = problem.op == ReduceOp::kNorm;
  const bool smallest = problem.op == ReduceOp::kAmin || problem.op == ReduceOp::kArgmin ||
                        (norm && std::isinf(problem.p) && problem.p < 0);
  if (norm) t.keep_low = ~sign_low, t.keep_high = ~sign;
  if (smallest && is_floating(problem.in_dtype)) t.flip_low = sign_low, t.flip_high = sign;
  if (smallest && !is_floating(problem.in_dtype)) t.flip_low = t.flip_high = ~0u;
  if (problem.in_dtype == DType::kI8) t.flip_low ^= 0x80808080u, t.flip_high ^= 0x80808080u;
  return t;
}

// Bits of an element that changes no result, repeated.
uint64_t filler_of(const ReduceProblem& problem, Kind kind) {
  const DType dtype = problem.in_dtype;
  const bool is_unsigned = dtype == DType::kU8 || dtype == DType::kBool;
  const int bits = 8 * static_cast<int>(element_size(dtype));
  const uint64_t sign = uint64_t{1} << (bits - 1), all = sign | (sign - 1);
  uint64_t infinity = 0, one = 1;
  if (dtype == DType::kF16) infinity = 0x7c00, one = 0x3c00;
  if (dtype == DType::kBF16) infinity = 0x7f80, one = 0x3f80;
  if (dtype == DType::kF32) infinity = 0x7f800000, one = 0x3f800000;
  if (dtype == DType::kF64) infinity = 0x7ff0000000000000, one = 0x3ff0000000000000;
  const bool smallest = problem.op == ReduceOp::kAmin || problem.op == ReduceOp::kArgmin ||
                        (problem.op == ReduceOp::kNorm && problem.p < 0);
  uint64_t element = 0;  // of sums, and of the largest magnitude
  if (kind == Kind::kProd) element = one;
  if (kind == Kind::kPowers && problem.p < 0) element = infinity;
  if (is_ordered(kind) && (smallest || problem.op != ReduceOp::kNorm)) {
    if (is_floating(dtype)) element = smallest ? infinity : sign | infinity;
    if (is_unsigned) element = smallest ? all : 0;
    if (!is_floating(dtype) && !is_unsigned) element = smallest ? all ^ sign : sign;
  }
  for (int at = bits; at < 64; at *= 2) element |= element << at;
  return element;
}

KeptDim kept_dim(const ReduceDim& dim) { return {dim.size, dim.in_stride, dim.out_stride}; }

// The dimensions as the kernel wants them.
void set_dims(const ReduceProblem& problem, const Plan& plan, const Config& config,
              StridedParams* params) {
  const Kernel kernel = config.kernel;
  Params& p = params->base;
  const ReduceDims &kept = plan.kept, &reduced = plan.reduced;
  if (kernel == Kernel::kStrided || kernel == Kernel::kRuns) {
    params->reduced_count = reduced.count;
    for (int d = 0; d < reduced.count; ++d) {
      const auto divisor =
          static_cast<uint32_t>(std::clamp<int64_t>(reduced[d].size, 1, kNeverReached));
      params->reduced[d] = {FastDivmod(divisor), reduced[d].size, reduced[d].in_stride};
    }
  }
  if (kernel == Kernel::kStrided) {
    params->kept_count = kept.count;
    for (int d = 0; d < kept.count; ++d) params->kept[d] = kept_dim(kept[d]);
    return;
  }
  const bool columns = of_columns(kernel);
  const ReduceDim& inner = reduced.innermost();
  const int64_t element = element_size(problem.in_dtype);
  const bool runs = kernel == Kernel::kRuns;
  p.runs =
      FastDivmod(reduced.count == 1 ? kNeverReached
                                    : static_cast<uint32_t>(runs ? config.row_loads : inner.size));
  p.outer_stride = reduced.count == 1 ? 0 : reduced[0].in_stride;
  p.inner_stride = inner.in_stride;
  if (kernel == Kernel::kShortRows || kernel == Kernel::kRaggedRows) {
    p.kept[0] = kept.count == 2 ? kept_dim(kept[0]) : KeptDim{1, 0, 0};
    p.kept[1] = kept_dim(kept.innermost());
    p.kept_inner =
        FastDivmod(kept.count == 2 ? static_cast<uint32_t>(kept.innermost().size) : kNeverReached);
    return;
  }

  p.kept_count = kept.count - (columns ? 1 : 0);
  for (int d = 0; d < p.kept_count; ++d) p.kept[d] = kept_dim(kept[d]);
  p.row_stride = kept[0].in_stride, p.row_out_stride = kept[0].out_stride;
  p.columns = kept.innermost().size;
  if (runs) {
    params->run_length = static_cast<uint32_t>(inner.size);
    params->row_loads = static_cast<uint32_t>(plan.extent / inner.size * config.row_loads);
  }
  if (columns) {
    p.kept[Params::kMaxKept - 1] = kept_dim(kept.innermost());
    const int vector_of_columns = static_cast<int>(16 / element);
    const int64_t tile = kernel == Kernel::kFlat ? vector_of_columns
                         : of_elements(kernel)   ? 1
                                                 : tile_columns(config, vector_of_columns);
    const int64_t tiles = ceil_div(p.columns, tile);
    p.kept_inner = FastDivmod(static_cast<uint32_t>(tiles));
    p.busy_threads = plan.outputs / p.columns * tiles;
    p.one_shift = config.one_shift, p.one_dim = reduced.count == 1;
    if (kernel == Kernel::kWrapped) p.extent = (p.extent - 1) * p.inner_stride + p.columns;
  }
}

Launcher* launcher_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return launch_f16;
    case DType::kBF16:
      return launch_bf16;
    case DType::kF32:
      return launch_f32;
    case DType::kF64:
      return launch_f64;
    case DType::kI8:
      return launch_i8;
    case DType::kI16:
      return launch_i16;
    case DType::kI32:
      return launch_i32;
    case DType::kI64:
      return launch_i64;
    case DType::kU8:
    case DType::kBool:  // a byte of 0 or 1
      return launch_u8;
  }
  return nullptr;
}

Launcher* launcher_of_clusters(DType dtype) {  // has_small
  return dtype == DType::kF16 ? sm90_f16 : dtype == DType::kBF16 ? sm90_bf16 : sm90_f32;
}

// A launch for each part of the tiles that a grid takes.
template <typename Run>
Status in_parts(int64_t tiles, int64_t most, const Run& run) {
  for (int64_t first = 0; first < tiles; first += most) {
    const Status status = run(first, std::min(most, tiles - first));
    if (!status.ok()) return status;
  }
  return {};
}

Status launch_short_rows(const ReduceProblem& problem, const Plan& plan, const Config& config,
                         StridedParams& params, Kind kind, cudaStream_t stream) {
  const ReduceDim& inner = plan.kept.innermost();
  const DType out_dtype = reduce_output_dtype(problem.op, problem.in_dtype);
  const int64_t rows_of_block =
      rows_of_warp(config, in_flight(config.kernel, kind, problem.in_dtype)) *
      (config.threads / 32);
  return in_parts(plan.outputs, kMaxShortRows, [&](int64_t first, int64_t rows) {
    if (first > 0) {  // one dimension only
      params.base.in = advance(problem.in, problem.in_dtype, first * inner.in_stride);
      params.base.out =
          const_cast<void*>(advance(problem.out, out_dtype, first * inner.out_stride));
    }
    params.base.outputs = rows;
    const Grid grid{.blocks = dim3(static_cast<unsigned>(ceil_div(rows, rows_of_block))),
                    .threads = dim3(config.threads),
                    .stream = stream};
    return launcher_of(problem.in_dtype)(kind, step_of(config.kernel), params, grid);
  });
}

Status launch_pieces(const ReduceProblem& problem, const Plan& plan, StridedParams& params,
                     Kind kind, cudaStream_t stream) {
  Params& p = params.base;
  p.lanes = 1;
  const uint32_t parts = p.pieces.divisor * p.runs.divisor;
  const auto one_more = [&] {  // those of a group lie apart: rather few for each thread
    return p.runs.divisor == 1 || 2 * p.lanes * parts <= kMaxOfPiecesBlock;
  };
  while (p.lanes < 32 && p.lanes < plan.outputs && one_more()) p.lanes *= 2;
  const int threads = parts / (256 / p.lanes) >= 2 ? 512 : 256;
  const int64_t blocks = ceil_div<int64_t>(plan.outputs, p.lanes);
  return in_parts(blocks, kMaxBlocks, [&](int64_t first, int64_t count) {
    p.first_tile = first;
    const Grid grid{
        .blocks = dim3(static_cast<unsigned>(count)),
        .threads = dim3(threads),
        .shared_bytes = static_cast<size_t>(threads / 32 * p.lanes * accumulator_bytes(kind)),
        .stream = stream};
    return launcher_of(problem.in_dtype)(kind, Step::kPieces, params, grid);
  });
}

// Of outputs and elements that lie behind one another.
Status copy(const ReduceProblem& problem, const Plan& plan, cudaStream_t stream) {
  const DType dtype = reduce_output_dtype(problem.op, problem.in_dtype);
  const auto bytes = static_cast<size_t>(plan.outputs * element_size(dtype));
  if (finds_positions(problem.op)) {
    return {cudaMemsetAsync(problem.out, 0, bytes, stream), "setting positions"};
  }
  return {cudaMemcpyAsync(problem.out, problem.in, bytes, cudaMemcpyDeviceToDevice, stream),
          "copying"};
}

}  // namespace

Status launch(const ReduceProblem& problem, const Plan& plan, const Config& config, void* workspace,
              cudaStream_t stream) {
  if (plan.outputs == 0) return {};
  const Kind kind = kind_of(problem);
  if (config.kernel == Kernel::kCopy) return copy(problem, plan, stream);
  Plan of_groups;
  if (config.group > 1) of_groups = columns_of_groups(plan);
  const Plan& first = config.group > 1 ? of_groups : plan;  // of the first launch
  StridedParams params;
  Params& p = params.base;
  p.in = problem.in, p.out = problem.out, p.partials = workspace;
  p.mail = config.mail ? workspace : nullptr, p.nonce = config.mail ? new_nonce() : 0;
  p.outputs = first.outputs, p.extent = first.extent, p.first_tile = 0;
  p.partial = config.group > 1;
  p.pieces = FastDivmod(static_cast<uint32_t>(config.pieces));
  p.collectors = static_cast<uint32_t>(config.collectors), p.piece_blocks = ~0u;
  p.lanes = config.lanes, p.vectors = config.vectors;
  p.row_loads = static_cast<uint32_t>(config.row_loads);
  p.l2_policy = config.streams ? ptx::kEvictFirst : ptx::kEvictNormal;
  p.transform = transform_of(problem);
  const uint64_t filler = filler_of(problem, kind);
  p.filler_low = static_cast<uint32_t>(filler);
  p.filler_high = static_cast<uint32_t>(filler >> 32);
  p.divisor = problem.op == ReduceOp::kMean ? static_cast<double>(plan.extent) : 1.0;
  p.p = problem.p;
  p.magnitude = problem.p == 0   ? Magnitude::kNonzero
                : problem.p == 1 ? Magnitude::kAbsolute
                                 : Magnitude::kSquare;
  params.piece_length = std::max<int64_t>(ceil_div(first.extent, config.pieces), 1);
  set_dims(problem, first, config, &params);
  if (config.kernel == Kernel::kShortRows || config.kernel == Kernel::kRaggedRows) {
    return launch_short_rows(problem, plan, config, params, kind, stream);
  }

  const bool in_memory = config.pieces > config.cluster || config.group > 1;
  const int64_t most_tiles = kMaxBlocks / (config.pieces + config.collectors);
  const Status status = in_parts(config.tiles, most_tiles, [&](int64_t begin, int64_t tiles) {
    p.first_tile = begin, p.piece_blocks = static_cast<uint32_t>(tiles * config.pieces);
    const auto of_tile = static_cast<unsigned>(config.pieces + config.collectors);
    const auto count = static_cast<unsigned>(tiles);
    const Grid grid{
        .blocks =
            config.kernel == Kernel::kRowPieces ? dim3(of_tile, count) : dim3(count * of_tile),
        .threads = dim3(config.threads),
        .shared_bytes = static_cast<size_t>(shared_bytes(config, kind, problem.in_dtype)),
        .stream = stream,
        .cluster = dim3(config.cluster)};
    Launcher* run = config.kernel == Kernel::kRowPieces ? launcher_of_clusters(problem.in_dtype)
                                                        : launcher_of(problem.in_dtype);
    return run(kind, step_of(config.kernel), params, grid);
  });
  if (!status.ok() || !in_memory || config.mail) return status;
  p.outputs = plan.outputs, p.runs = FastDivmod(static_cast<uint32_t>(config.group));
  return launch_pieces(problem, plan, params, kind, stream);
}

}  // namespace xgemm::cuda::reduce
