#include "ops/w4a16_cuda.h"

#ifdef XGEMM_WITH_CUDA
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "common/current_device.h"
#include "cuda/w4a16/select.h"
#include "ops/cuda_context.h"
#include "ops/dense.h"
#include "ops/scratch.h"
#endif

namespace xgemm::ops {
#ifdef XGEMM_WITH_CUDA
namespace {

using cuda::w4a16::Dequantize;
using cuda::w4a16::Gather;
using cuda::w4a16::Problem;

// Of the dequantized part of a weight that is multiplied at a time. The backward's parts are wide
// enough for a product's tiles to fill the GPU.
constexpr int64_t kForwardPartBytes = int64_t{64} << 20, kBackwardPartBytes = int64_t{256} << 20;

void* advance(void* data, DType dtype, int64_t elements) {
  return static_cast<char*>(data) + elements * element_size(dtype);
}
const void* advance(const void* data, DType dtype, int64_t elements) {
  return data == nullptr ? nullptr
                         : static_cast<const char*>(data) + elements * element_size(dtype);
}

// The parts of `extent` that keep `bytes_each` times their size within `budget`: multiples of
// `grain`, and nearly equal.
int64_t part_extent(int64_t extent, int64_t bytes_each, int64_t budget, int64_t grain) {
  const int64_t parts =
      std::max<int64_t>(1, (extent * std::max<int64_t>(1, bytes_each) + budget - 1) / budget);
  const int64_t even = (extent + parts - 1) / parts;
  return std::max<int64_t>(grain, (even + grain - 1) / grain * grain);
}

// fp32 activations: the weight as fp32, some columns at a time, and a dense product over them.
class Fp32Product {
 public:
  Fp32Product(const char* op, const Problem& problem, const TensorView& like, cudaStream_t stream)
      : op_(op), p_(problem), like_(like), stream_(stream) {}

  void run() {
    const int64_t k = p_.weight.layout.k, n = p_.weight.layout.n;
    const int64_t part = part_extent(n, k * 4, kForwardPartBytes, w4::kRowColumns);
    const Scratch weight(std::max<int64_t>(std::min(part, n) * k * 4, 1), like_);
    std::optional<Scratch> gathered;
    if (p_.perm != nullptr) {
      gathered.emplace(std::max<int64_t>(p_.m * k * 4, 1), like_);
      gather({.rows = p_.m,
              .cols = k,
              .src_rows = p_.m,
              .src_cols = k,
              .item_size = 4,
              .src = p_.x,
              .src_row_stride = p_.x_row_stride,
              .src_col_stride = p_.x_col_stride,
              .dst = gathered->data,
              .dst_row_stride = k,
              .from = p_.perm});
      p_.x = gathered->data, p_.x_row_stride = k, p_.x_col_stride = 1;
    }
    for (int64_t column = 0; column < n; column += part) {
      const int64_t columns = std::min(part, n - column);
      require_ok(op_, cuda::w4a16::dequantize({.weight = p_.weight,
                                               .column = column,
                                               .columns = columns,
                                               .channels = k,
                                               .dst = weight.data,
                                               .dst_row_stride = k,
                                               .dtype = DType::kF32},
                                              stream_));
      multiply(weight.data, column, columns);
    }
  }

 private:
  void gather(const Gather& gather) {
    require_ok(op_, cuda::w4a16::gather_columns(gather, stream_));
  }

  GemmProblem dense(const void* weight, int64_t column, int64_t columns) const {
    GemmProblem dense;
    dense.m = p_.m, dense.n = columns, dense.k = p_.weight.layout.k;
    dense.dtype = DType::kF32;
    dense.a = {.data = p_.x, .row_stride = p_.x_row_stride, .col_stride = p_.x_col_stride};
    dense.b = {.data = weight, .row_stride = 1, .col_stride = dense.k};
    dense.d = advance(p_.d, DType::kF32, column * p_.d_col_stride);
    dense.d_row_stride = p_.d_row_stride, dense.d_col_stride = p_.d_col_stride;
    dense.bias = advance(p_.bias, DType::kF32, column * p_.bias_stride);
    dense.bias_stride = p_.bias_stride;
    dense.activation = p_.activation;
    return dense;
  }

  void multiply(const void* weight, int64_t column, int64_t columns) {
    const GemmProblem whole = dense(weight, column, columns);
    if (!p_.batch_invariant) return run_dense(op_, whole, like_);
    // Blocks of as many rows for every M, the last one filled up with zeros: each is the same
    // problem to the dense kernels, and so are a row's bits.
    constexpr int64_t kRows = 64;
    const int64_t k = whole.k;
    const Scratch x(std::max<int64_t>(kRows * k * 4, 1), like_), y(kRows * columns * 4, like_);
    for (int64_t row = 0; row < p_.m; row += kRows) {
      const int64_t rows = std::min(kRows, p_.m - row);
      gather({.rows = kRows,
              .cols = k,
              .src_rows = rows,
              .src_cols = k,
              .item_size = 4,
              .src = advance(p_.x, DType::kF32, row * p_.x_row_stride),
              .src_row_stride = p_.x_row_stride,
              .src_col_stride = p_.x_col_stride,
              .dst = x.data,
              .dst_row_stride = k});
      GemmProblem block = whole;
      block.m = kRows;
      block.a = {.data = x.data, .row_stride = k, .col_stride = 1};
      block.d = y.data, block.d_row_stride = columns, block.d_col_stride = 1;
      run_dense(op_, block, like_);
      gather({.rows = rows,
              .cols = columns,
              .src_rows = rows,
              .src_cols = columns,
              .item_size = 4,
              .src = y.data,
              .src_row_stride = columns,
              .dst = advance(whole.d, DType::kF32, row * p_.d_row_stride),
              .dst_row_stride = p_.d_row_stride,
              .dst_col_stride = p_.d_col_stride});
    }
  }

  const char* op_;
  Problem p_;
  const TensorView& like_;
  cudaStream_t stream_;
};

// Another reference to a tensor, for torch's own ops.
Tensor alias_of(const OwnedTensor& tensor) {
  AtenTensorHandle alias = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(tensor.get(), &alias));
  return Tensor(alias);
}

}  // namespace

CudaRows::CudaRows(const OwnedTensor& tensor, const TensorView& view, std::optional<int64_t> stride)
    : data(view.data()), row_stride(stride.value_or(0)), col_stride(view.stride(-1)) {
  if (stride) return;
  copy_ = torch::stable::contiguous(alias_of(tensor));
  data = copy_->const_data_ptr();
  row_stride = view.size(-1), col_stride = 1;
}

void copy_to(const OwnedTensor& dst, const Tensor& source) {
  Tensor to = alias_of(dst);
  torch::stable::copy_(to, source);
}

void run_w4a16_cuda(const char* op, const Problem& problem, const TensorView& like) {
  const CurrentDevice device(op, like.device_index);
  const cudaStream_t stream = current_stream(like.device_index);
  const std::optional<cuda::w4a16::Choice> choice =
      cuda::w4a16::remembered_config(problem, device_info(like.device_index));
  if (!choice) return Fp32Product(op, problem, like, stream).run();
  std::optional<Scratch> workspace;
  if (choice->workspace_bytes > 0) workspace.emplace(choice->workspace_bytes, like);
  require_ok(op,
             cuda::w4a16::launch(problem, *choice, workspace ? workspace->data : nullptr, stream));
}

void run_w4a16_grad_cuda(const char* op, const W4Gradient& g, const TensorView& like) {
  const CurrentDevice device(op, like.device_index);
  const cudaStream_t stream = current_stream(like.device_index);
  const int64_t n = g.weight.layout.n, k = g.weight.layout.k, item = element_size(g.dtype);
  const int64_t part = part_extent(k, n * item, kBackwardPartBytes, w4::kUnitK);
  const int64_t stride = std::min(part, (k + 7) / 8 * 8);  // rows of the part stay aligned
  const Scratch weight(std::max<int64_t>(n * stride * item, 1), like);
  std::optional<Scratch> product, inverse;
  if (g.perm != nullptr) {
    product.emplace(g.m * k * item, like);
    inverse.emplace(k * 4, like);
  }
  void* d = product ? product->data : g.d;
  // Some channels at a time: their results lie apart, so that no sum is rounded in between.
  for (int64_t channel = 0; channel < k; channel += part) {
    const int64_t channels = std::min(part, k - channel);
    require_ok(op, cuda::w4a16::dequantize({.weight = g.weight,
                                            .channel = channel,
                                            .columns = n,
                                            .channels = channels,
                                            .dst = weight.data,
                                            .dst_row_stride = stride,
                                            .dtype = g.dtype},
                                           stream));
    GemmProblem dense;
    dense.m = g.m, dense.n = channels, dense.k = n;
    dense.dtype = g.dtype;
    dense.a = {.data = g.grad, .row_stride = g.grad_row_stride, .col_stride = g.grad_col_stride};
    dense.b = {.data = weight.data, .row_stride = stride, .col_stride = 1};
    dense.d = advance(d, g.dtype, channel), dense.d_row_stride = k;
    run_dense(op, dense, like);
  }
  if (g.perm == nullptr) return;
  auto* channels_from = static_cast<int32_t*>(inverse->data);
  require_ok(op, cuda::w4a16::invert_permutation(g.perm, k, channels_from, stream));
  require_ok(op, cuda::w4a16::gather_columns({.rows = g.m,
                                              .cols = k,
                                              .src_rows = g.m,
                                              .src_cols = k,
                                              .item_size = item,
                                              .src = product->data,
                                              .src_row_stride = k,
                                              .dst = g.d,
                                              .dst_row_stride = k,
                                              .from = channels_from},
                                             stream));
}

void run_dequantize_cuda(const char* op, const Dequantize& part, const TensorView& like) {
  const CurrentDevice device(op, like.device_index);
  require_ok(op, cuda::w4a16::dequantize(part, current_stream(like.device_index)));
}
#endif  // XGEMM_WITH_CUDA

std::string explain_w4a16_cuda(const char* op, int64_t m, const cpu::W4Weight& weight, DType dtype,
                               bool batch_invariant, ExplainForm form) {
#ifdef XGEMM_WITH_CUDA
  const DeviceInfo device = current_device();
  if (device.sm_count > 0) {
    const w4::Layout& layout = weight.layout;
    const Problem problem{.m = m,
                          .weight = cuda_weight(weight),
                          .dtype = dtype,
                          .x_row_stride = layout.k,
                          .d_row_stride = layout.n,
                          .batch_invariant = batch_invariant};
    if (const auto choice = cuda::w4a16::select_config(problem, device)) {
      return form.json ? cuda::w4a16::explain_json(problem, device, form.candidates)
                       : cuda::w4a16::explain(problem, *choice);
    }
    GemmProblem dense;
    dense.m = m, dense.n = layout.n, dense.k = layout.k;
    dense.dtype = dtype;
    dense.a = {.row_stride = layout.k, .col_stride = 1};
    dense.b = {.row_stride = 1, .col_stride = layout.k};
    dense.d_row_stride = layout.n;
    const std::string product = explain_dense_cuda(op, dense, form);
    if (form.json) return product;
    return "W4A16 on CUDA with float32 activations: the weight is dequantized to float32 in parts"
           " of at most 64 MiB, each multiplied by the dense kernel\n" +
           product;
  }
  value_error(op, ": device must be one that is here, got 'cuda' without a GPU");
#else
  (void)m, (void)weight, (void)dtype, (void)batch_invariant, (void)form;
  value_error(op, ": device must be 'cpu' in a library built without CUDA, got 'cuda'");
#endif
}

}  // namespace xgemm::ops
