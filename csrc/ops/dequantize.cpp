// dequantize_w4: a packed 4-bit weight as a dense tensor [n, k].
#include <utility>

#include "cpu/w4a16/api.h"
#include "ops/boxed.h"
#include "ops/w4_checks.h"
#include "ops/w4a16_cuda.h"

namespace xgemm::ops {
namespace {

constexpr const char* kOp = "dequantize_w4";

DType parse_dtype(const std::string& text) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (text == name_of(dtype)) return dtype;
  }
  value_error(kOp, ": dtype must be 'float32', 'float16' or 'bfloat16', got ", printable(text));
}

Tensor dequantize_w4(const Tensor& qweight, int64_t n, int64_t k, int64_t group_size,
                     bool bf16_scales, bool zeros, const StringArg& dtype_arg, bool fp4) {
  const TensorView view(kOp, "qweight", qweight);
  const w4::Layout layout = require_layout(kOp, n, k, group_size, zeros);
  require_fp4_form(kOp, fp4, layout, bf16_scales);
  const PackedBytes packed(kOp, view, layout, bf16_scales);
  const DType dtype = parse_dtype(dtype_arg.text);
  const cpu::W4Weight weight{
      .data = packed.data(), .layout = layout, .bf16_scales = bf16_scales, .fp4 = fp4};
  Tensor result = new_output({n, k}, torch_code(dtype), view);
  if (n == 0 || k == 0) return result;
#ifdef XGEMM_WITH_CUDA
  if (view.device_type == aoti_torch_device_type_cuda()) {
    run_dequantize_cuda(kOp,
                        {.weight = cuda_weight(weight),
                         .columns = n,
                         .channels = k,
                         .dst = result.mutable_data_ptr(),
                         .dst_row_stride = k,
                         .dtype = dtype,
                         .fp4 = fp4},
                        view);
    return result;
  }
#endif
  cpu::w4_dequantize(weight, dtype, result.mutable_data_ptr(), TorchParallel());
  return result;
}

}  // namespace
}  // namespace xgemm::ops

STABLE_TORCH_LIBRARY_IMPL(xgemm, CPU, m) {
  m.impl("dequantize_w4", TORCH_BOX(&xgemm::ops::dequantize_w4));
}

#ifdef XGEMM_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(xgemm, CUDA, m) {
  m.impl("dequantize_w4", TORCH_BOX(&xgemm::ops::dequantize_w4));
}
#endif
