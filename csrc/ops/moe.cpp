// moe_sort and moe.w4a16: the slots of a router ordered by expert, and each expert's product.
#include "ops/moe.h"

#include <torch/csrc/stable/ops.h>

#include <limits>
#include <utility>
#include <vector>

#include "ops/boxed.h"
#include "ops/w4_checks.h"

namespace xgemm::ops {

template <>
struct EnumNames<GatedActivation> {
  static constexpr std::string_view kArgument = "activation";
  static constexpr std::array<std::string_view, 7> kNames = {
      "none", "relu", "gelu", "gelu_tanh", "silu", "silu_and_mul", "gelu_tanh_and_mul"};
};

namespace {

using MaybeTensor = std::optional<Tensor>;

// A tensor whose elements follow each other in memory: itself, or a copy.
Tensor dense(const Tensor& tensor) {
  return TensorView(tensor).contiguous() ? tensor : torch::stable::contiguous(tensor);
}

// ---- moe_sort ----

// Every slot's expert counted, then each slot put at its expert's next place.
template <typename Id>
void sort_cpu(const Id* ids, int64_t slots, int64_t experts, int32_t* sorted) {
  const auto bucket = [&](int64_t s) { return ids[s] < 0 || ids[s] >= experts ? experts : ids[s]; };
  std::vector<int32_t> next(static_cast<size_t>(experts) + 1, 0);
  for (int64_t s = 0; s < slots; ++s) ++next[static_cast<size_t>(bucket(s))];
  int32_t begin = 0;
  for (int64_t e = 0; e <= experts; ++e) {
    const int32_t count = next[static_cast<size_t>(e)];
    sorted[e] = next[static_cast<size_t>(e)] = begin;
    begin += count;
  }
  for (int64_t s = 0; s < slots; ++s) {
    sorted[experts + 1 + next[static_cast<size_t>(bucket(s))]++] = static_cast<int32_t>(s);
  }
}

Tensor moe_sort(const Tensor& ids, int64_t experts) {
  constexpr const char* kOp = "moe_sort";
  constexpr int64_t kMaxExperts = 1 << 20;
  const TensorView given(kOp, "ids", ids);
  const DType dtype = require_dtype(kOp, "ids", given, {DType::kI32, DType::kI64});
  if (given.dim != 2) value_error(kOp, ": ids must have the shape [T, k], got ", shape_of(given));
  if (experts < 1 || experts > kMaxExperts) {
    value_error(kOp, ": experts must be in [1, ", kMaxExperts, "], got ", experts);
  }
  const int64_t slots = given.numel();
  if (slots > std::numeric_limits<int32_t>::max() - experts - 1) {
    value_error(kOp, ": ids must have fewer than 2^31 elements, got ", shape_of(given));
  }
  const Tensor kept = dense(ids);
  const TensorView view(kept);
  Tensor result = new_output({experts + 1 + slots}, torch_code(DType::kI32), view);
  auto* sorted = static_cast<int32_t*>(result.mutable_data_ptr());
#ifdef XGEMM_WITH_CUDA
  if (view.device_type == aoti_torch_device_type_cuda()) {
    sort_cuda(kOp, view, experts, sorted);
    return result;
  }
#endif
  dtype == DType::kI32 ? sort_cpu(static_cast<const int32_t*>(view.data()), slots, experts, sorted)
                       : sort_cpu(static_cast<const int64_t*>(view.data()), slots, experts, sorted);
  return result;
}

// ---- moe.w4a16 ----

constexpr const char* kMoe = "moe.w4a16";

// The packed weights of all experts, [experts, rows, row_bytes], at a multiple of 16.
Tensor require_packed(const Tensor& qweight, const w4::Layout& layout, bool bf16_scales) {
  const TensorView view(kMoe, "qweight", qweight);
  require_dtype(kMoe, "qweight", view, {DType::kU8});
  if (view.dim != 3 || view.sizes[0] < 1 || view.sizes[1] != layout.rows() ||
      view.sizes[2] != layout.row_bytes()) {
    value_error(kMoe, ": qweight must have the shape [experts, ", layout.rows(), ", ",
                layout.row_bytes(), "] for n=", layout.n, ", k=", layout.k,
                ", group_size=", layout.group_size, ", bf16_scales=", bf16_scales,
                ", zeros=", layout.zeros, ", got ", shape_of(view));
  }
  if (!view.contiguous()) {
    value_error(kMoe, ": qweight must be contiguous, got strides ", shape_of(view.strides, 3));
  }
  if (reinterpret_cast<uintptr_t>(view.data()) % 16 == 0) return qweight;
  return torch::stable::clone(qweight);
}

// x as the kernels read it: its columns are neighbours.
Tensor with_whole_rows(const Tensor& a) {
  const TensorView view(a);
  return view.stride(-1) == 1 || view.size(-1) <= 1 ? a : torch::stable::contiguous(a);
}

Tensor moe_w4a16(const Tensor& a, const Tensor& qweight, const Tensor& sorted, int64_t top_k,
                 int64_t n, int64_t k, int64_t group_size, const MaybeTensor& bias,
                 const MaybeTensor& perm, const MaybeTensor& weights, bool bf16_scales, bool zeros,
                 const EnumArg<GatedActivation>& activation, bool fp4) {
  const TensorView given(kMoe, "a", a);
  MoeCall call;
  call.dtype = require_dtype(kMoe, "a", given, {DType::kF32, DType::kF16, DType::kBF16});
  call.activation = activation.value(kMoe);
  const w4::Layout layout = require_layout(kMoe, n, k, group_size, zeros);
  require_fp4_form(kMoe, fp4, layout, bf16_scales);
  if (top_k < 1 || top_k > std::numeric_limits<int32_t>::max()) {
    value_error(kMoe, ": top_k must be in [1, 2147483647], got ", top_k);
  }
  call.top_k = top_k;
  if (is_gated(call.activation) && n % 2 != 0) {
    value_error(kMoe, ": n must be even, a gate and what it multiplies, got ", n);
  }
  if (given.dim != 2 || given.sizes[1] != k) {
    value_error(kMoe, ": a must have the shape [rows, k=", k, "], got ", shape_of(given));
  }

  const Tensor packed = require_packed(qweight, layout, bf16_scales);
  const TensorView packed_view(packed);
  require_same_device(kMoe, "qweight", packed_view, "a", given);
  call.experts = packed_view.sizes[0];
  call.expert_bytes = layout.bytes();
  call.weight = {.data = static_cast<const uint8_t*>(packed_view.data()),
                 .layout = layout,
                 .bf16_scales = bf16_scales,
                 .fp4 = fp4};

  const TensorView order(kMoe, "sorted", sorted);
  require_dtype(kMoe, "sorted", order, {DType::kI32});
  require_same_device(kMoe, "sorted", order, "a", given);
  const int64_t slots = order.dim == 1 ? order.sizes[0] - call.experts - 1 : -1;
  if (slots < 0 || slots % top_k != 0 || !order.contiguous()) {
    value_error(kMoe, ": sorted must be moe_sort's result for ", call.experts,
                " experts and a multiple of top_k=", top_k, " slots, got ", shape_of(order));
  }
  call.sorted = static_cast<const int32_t*>(order.data());
  call.tokens = slots / top_k;
  if (given.sizes[0] != slots && given.sizes[0] != call.tokens) {
    value_error(kMoe, ": a must have a row for each of ", call.tokens, " tokens or of ", slots,
                " slots, got ", shape_of(given));
  }
  call.row_divisor = given.sizes[0] == call.tokens ? top_k : 1;
  const Tensor rows = with_whole_rows(a);
  const TensorView x(rows);
  call.x = x.data();
  call.x_row_stride = x.stride(0);

  std::optional<Tensor> kept_bias, kept_perm, kept_weights;
  if (bias) {
    const TensorView view(kMoe, "bias", *bias);
    require_same_dtype(kMoe, "bias", view, "a", given);
    require_same_device(kMoe, "bias", view, "a", given);
    require_shape(kMoe, "bias", view, {call.experts, n});
    call.bias = kept_bias.emplace(dense(*bias)).const_data_ptr();
  }
  if (perm) {
    const TensorView view(kMoe, "perm", *perm);
    require_dtype(kMoe, "perm", view, {DType::kI32});
    require_same_device(kMoe, "perm", view, "a", given);
    require_shape(kMoe, "perm", view, {call.experts, k});
    call.perm = static_cast<const int32_t*>(kept_perm.emplace(dense(*perm)).const_data_ptr());
  }
  if (weights) {
    const TensorView view(kMoe, "weights", *weights);
    call.weights_dtype =
        require_dtype(kMoe, "weights", view, {DType::kF32, DType::kF16, DType::kBF16});
    require_same_device(kMoe, "weights", view, "a", given);
    require_shape(kMoe, "weights", view, {call.tokens, top_k});
    call.weights = kept_weights.emplace(dense(*weights)).const_data_ptr();
  }

  Tensor result =
      new_output({weights ? call.tokens : slots, call.columns()}, given.dtype_code, given);
  if (slots == 0 || call.columns() == 0) return result;
  call.result = result.mutable_data_ptr();
#ifdef XGEMM_WITH_CUDA
  if (given.device_type == aoti_torch_device_type_cuda()) {
    run_moe_cuda(kMoe, call, given);
    return result;
  }
#endif
  run_moe_cpu(kMoe, call, given);
  return result;
}

}  // namespace
}  // namespace xgemm::ops

STABLE_TORCH_LIBRARY_IMPL(xgemm, CPU, m) {
  m.impl("moe_sort", TORCH_BOX(&xgemm::ops::moe_sort));
  m.impl("moe.w4a16", TORCH_BOX(&xgemm::ops::moe_w4a16));
}

#ifdef XGEMM_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(xgemm, CUDA, m) {
  m.impl("moe_sort", TORCH_BOX(&xgemm::ops::moe_sort));
  m.impl("moe.w4a16", TORCH_BOX(&xgemm::ops::moe_w4a16));
}
#endif
