// The eight reductions: dimensions checked and sorted into kept and reduced ones.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cpu/reduce/api.h"
#include "ops/boxed.h"
#include "ops/checks.h"
#include "ops/explain_form.h"

#ifdef XGEMM_WITH_CUDA
#include "common/current_device.h"
#include "cuda/reduce/api.h"
#include "cuda/reduce/select.h"
#include "ops/cuda_context.h"
#endif

namespace xgemm::ops {
namespace {

using Dims = std::optional<std::vector<int64_t>>;

constexpr const char* kNames[] = {"sum",  "mean", "prod",   "amax",
                                  "amin", "norm", "argmax", "argmin"};
constexpr const char* kExplain = "explain_reduce";
constexpr const char* name_of(ReduceOp op) { return kNames[static_cast<int>(op)]; }

DType require_input(ReduceOp op, const TensorView& x) {
  if (op == ReduceOp::kMean || op == ReduceOp::kNorm) {
    return require_dtype(name_of(op), "x", x,
                         {DType::kF16, DType::kBF16, DType::kF32, DType::kF64});
  }
  return require_dtype(name_of(op), "x", x,
                       {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kI8,
                        DType::kI16, DType::kI32, DType::kI64, DType::kU8, DType::kBool});
}

// Bit d is set where dimension d is reduced: all of them when none is named.
uint64_t reduced_dims(const char* name, const int64_t* dims, size_t count, int64_t ndim) {
  if (ndim > ReduceDims::kMaxDims) {
    value_error(name, ": x must have at most ", int{ReduceDims::kMaxDims}, " dimensions, got ",
                ndim);
  }
  uint64_t mask = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bit = uint64_t{1} << wrap_dim(name, dims[i], ndim);
    if (mask & bit) {
      value_error(name, ": dim must name each dimension once, got ", dims[i], " again for a ", ndim,
                  "-D tensor");
    }
    mask |= bit;
  }
  return count == 0 ? ~uint64_t{0} : mask;
}

bool has_identity(ReduceOp op, double p) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
    case ReduceOp::kProd:
      return true;
    case ReduceOp::kNorm:
      return !(p < 0) && p != std::numeric_limits<double>::infinity();
    default:
      return false;
  }
}

#ifdef XGEMM_WITH_CUDA
void run_on_gpu(const ReduceProblem& problem, const TensorView& like) {
  const cuda::reduce::Plan plan = cuda::reduce::make_plan(problem);
  const cuda::reduce::Config config =
      cuda::reduce::select_config(problem, plan, device_info(like.device_index));
  OwnedTensor workspace;  // freed in the stream's order
  void* memory = nullptr;
  if (config.workspace_bytes > 0) {
    workspace = new_owned(&config.workspace_bytes, 1, torch_code(DType::kI8), like);
    TORCH_ERROR_CODE_CHECK(torch_get_mutable_data_ptr(workspace.get(), &memory));
  }
  const cudaStream_t stream = current_stream(like.device_index);
  require_ok(name_of(problem.op), cuda::reduce::launch(problem, plan, config, memory, stream));
}
#endif

// The sizes and strides of x's dimensions as those that are kept and those that are reduced. The
// output's strides are set by dense_output.
ReduceProblem make_problem(ReduceOp op, DType dtype, double p, const int64_t* sizes,
                           const int64_t* strides, int64_t dim, uint64_t mask, bool empty) {
  ReduceProblem problem;
  problem.op = op;
  problem.in_dtype = dtype;
  problem.p = p;
  for (int64_t d = 0; d < dim; ++d) {
    const bool reduced = mask >> d & 1;
    // An empty tensor's sizes may have a product beyond int64, and its strides any value.
    const ReduceDim extent = {sizes[d], empty ? 0 : strides[d], 0};
    if (!reduced) problem.kept.push(extent);
    if (reduced && !empty) problem.reduced.push(extent);
  }
  if (empty) problem.reduced.push({0, 1, 0});
  // The norm of one number, of whatever order but 0, is its magnitude.
  if (op == ReduceOp::kNorm && problem.reduced.elements() == 1 && (p < 0 || p > 0)) {
    problem.p = std::numeric_limits<double>::infinity();
  }
  return problem;
}

void dense_output(ReduceProblem* problem) {
  int64_t stride = 1;
  for (int d = problem->kept.count - 1; d >= 0; --d) {
    problem->kept[d].out_stride = stride;
    stride *= problem->kept[d].size;
  }
}

ReturnedTensor reduce(ReduceOp op, const OwnedTensor& x, const int64_t* dims, size_t count,
                      bool keepdim, double p = 2.0) {
  const TensorView view(name_of(op), "x", x);
  const DType dtype = require_input(op, view);
  const uint64_t mask = reduced_dims(name_of(op), dims, count, view.dim);

  int64_t sizes[ReduceDims::kMaxDims];
  int64_t out_dim = 0;
  const bool empty = view.numel() == 0;
  bool no_output = false;
  for (int64_t d = 0; d < view.dim; ++d) {
    const bool reduced = mask >> d & 1;
    if (reduced && view.sizes[d] == 0 && !has_identity(op, p)) {
      index_error(name_of(op), ": dim ", d, " must not be empty where it is reduced",
                  op == ReduceOp::kNorm ? concat(" with p=", p) : "", ", got x of shape ",
                  shape_of(view));
    }
    no_output = no_output || (!reduced && view.sizes[d] == 0);
    if (!reduced || keepdim) sizes[out_dim++] = reduced ? 1 : view.sizes[d];
  }
  ReduceProblem problem =
      make_problem(op, dtype, p, view.sizes, view.strides, view.dim, mask, empty);
#ifdef XGEMM_WITH_CUDA
  std::optional<CurrentDevice> device;
  const bool on_gpu = view.device_type == aoti_torch_device_type_cuda();
  if (on_gpu) device.emplace(name_of(op), view.device_index);
#endif
  OwnedTensor out = new_owned(sizes, out_dim, torch_code(reduce_output_dtype(op, dtype)), view);
  if (no_output) return ReturnedTensor(std::move(out));
  dense_output(&problem);
  problem.in = view.data();
  problem.out = TensorView(out).mutable_data();
#ifdef XGEMM_WITH_CUDA
  if (on_gpu) {
    run_on_gpu(problem, view);
    return ReturnedTensor(std::move(out));
  }
#endif
  cpu::reduce(problem, TorchParallel());
  return ReturnedTensor(std::move(out));
}

template <ReduceOp kOp>
ReturnedTensor over_dims(const OwnedTensor& x, const Dims& dim, bool keepdim) {
  return reduce(kOp, x, dim ? dim->data() : nullptr, dim ? dim->size() : 0, keepdim);
}

ReturnedTensor norm(const OwnedTensor& x, const Dims& dim, bool keepdim, double p) {
  return reduce(ReduceOp::kNorm, x, dim ? dim->data() : nullptr, dim ? dim->size() : 0, keepdim, p);
}

template <ReduceOp kOp>
ReturnedTensor over_dim(const OwnedTensor& x, std::optional<int64_t> dim, bool keepdim) {
  return reduce(kOp, x, dim ? &*dim : nullptr, dim ? 1 : 0, keepdim);
}

// `op` is a ReduceOp, as direct.py numbers them.
ReturnedTensor reduce_direct(const OwnedTensor& x, int64_t op, std::optional<int64_t> dim) {
  if (op < 0 || op >= std::ssize(kNames)) {
    value_error("_reduce: op must be in [0, ", std::ssize(kNames), "), got ", op);
  }
  return reduce(static_cast<ReduceOp>(op), x, dim ? &*dim : nullptr, dim ? 1 : 0, false);
}

std::string explain_on_gpu([[maybe_unused]] const ReduceProblem& problem,
                           [[maybe_unused]] ExplainForm form) {
#ifdef XGEMM_WITH_CUDA
  const DeviceInfo device = current_device();
  if (device.sm_count > 0) {
    const cuda::reduce::Plan plan = cuda::reduce::make_plan(problem);
    if (form.json) return cuda::reduce::explain_json(problem, plan, device, form.candidates);
    return cuda::reduce::explain(plan, cuda::reduce::select_config(problem, plan, device));
  }
  value_error(kExplain, ": device must be one that is here, got 'cuda' without a GPU");
#else
  value_error(kExplain, ": device must be 'cpu' in a library built without CUDA, got 'cuda'");
#endif
}

// Of a contiguous tensor whose address is a multiple of 16 bytes.
std::string explain_reduce(const StringArg& op, const std::vector<int64_t>& shape, const Dims& dim,
                           const StringArg& dtype, double p, const StringArg& device, bool json,
                           bool candidates) {
  const auto* found = std::ranges::find(kNames, op.text, [](const char* x) { return x; });
  if (found == std::end(kNames)) {
    value_error(kExplain, ": op must be a reduction, such as 'sum', got ", printable(op.text));
  }
  const auto reduction = static_cast<ReduceOp>(found - kNames);
  if (device.text != "cpu" && device.text != "cuda") {
    value_error(kExplain, ": device must be 'cpu' or 'cuda', got ", printable(device.text));
  }
  const bool floats = reduction == ReduceOp::kMean || reduction == ReduceOp::kNorm;
  std::optional<DType> element;
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto each = static_cast<DType>(i);
    if (dtype.text == xgemm::name_of(each) && (is_floating(each) || !floats)) element = each;
  }
  if (!element) {
    value_error(kExplain, ": dtype of ", op.text, " must be one that it takes, got ",
                printable(dtype.text));
  }
  const auto count = static_cast<int64_t>(shape.size());
  const uint64_t mask =
      reduced_dims(kExplain, dim ? dim->data() : nullptr, dim ? dim->size() : 0, count);
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (int64_t d = count - 1; d >= 0; --d) {
    strides[d] = stride;
    const bool fits = shape[d] >= 0 && !__builtin_mul_overflow(stride, shape[d], &stride);
    if (!fits) value_error(kExplain, ": shape must have a size in int64, got ", shape[d]);
  }
  ReduceProblem problem =
      make_problem(reduction, *element, p, shape.data(), strides.data(), count, mask, stride == 0);
  dense_output(&problem);
  if (device.text == "cuda")
    return explain_on_gpu(problem, {.json = json, .candidates = candidates});
  return cpu::explain_reduce(problem, json);
}

void register_kernels(torch::stable::detail::StableLibrary& m) {
  m.impl("sum", TORCH_BOX(&over_dims<ReduceOp::kSum>));
  m.impl("mean", TORCH_BOX(&over_dims<ReduceOp::kMean>));
  m.impl("prod", TORCH_BOX(&over_dims<ReduceOp::kProd>));
  m.impl("amax", TORCH_BOX(&over_dims<ReduceOp::kAmax>));
  m.impl("amin", TORCH_BOX(&over_dims<ReduceOp::kAmin>));
  m.impl("norm", TORCH_BOX(&norm));
  m.impl("argmax", TORCH_BOX(&over_dim<ReduceOp::kArgmax>));
  m.impl("argmin", TORCH_BOX(&over_dim<ReduceOp::kArgmin>));
  m.impl("_reduce", TORCH_BOX(&reduce_direct));
}

}  // namespace
}  // namespace xgemm::ops

STABLE_TORCH_LIBRARY_IMPL(xgemm, CompositeExplicitAutograd, m) {
  m.impl("explain_reduce", TORCH_BOX(&xgemm::ops::explain_reduce));
}
STABLE_TORCH_LIBRARY_IMPL(xgemm, CPU, m) { xgemm::ops::register_kernels(m); }
#ifdef XGEMM_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(xgemm, CUDA, m) { xgemm::ops::register_kernels(m); }
#endif
