// pack_w4 and unpack_w4 on CUDA.
#ifdef XGEMM_WITH_CUDA
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <tuple>

#include "cuda/w4a16/api.h"
#include "ops/boxed.h"
#include "ops/cuda_context.h"
#include "ops/w4_checks.h"

namespace xgemm::ops {
namespace {

constexpr const char* kPack = "pack_w4";

// Packing looks at every value, so it waits for the device; a graph being captured cannot.
void refuse_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus capturing{};
  require_ok(kPack, {cudaStreamIsCapturing(stream, &capturing), "asking for stream capture"});
  if (capturing != cudaStreamCaptureStatusNone) {
    throw std::runtime_error(
        "pack_w4: the current stream must not be capturing a CUDA graph: packing validates its "
        "input and waits for it");
  }
}

template <typename T>
T fetch(const T* device, int64_t index, cudaStream_t stream) {
  T value{};
  require_ok(kPack,
             {cudaMemcpyAsync(&value, device + index, sizeof(T), cudaMemcpyDeviceToHost, stream),
              "reading back a faulty value"});
  require_ok(kPack, {cudaStreamSynchronize(stream), "reading back a faulty value"});
  return value;
}

void require_sound(const w4::Layout& layout, const cuda::W4Canonical& weight, bool bf16_scales,
                   const TensorView& like, cudaStream_t stream) {
  unsigned long long faults[3];
  const Tensor buffer = new_output({3}, torch_code(DType::kI64), like);
  auto* on_device = static_cast<unsigned long long*>(buffer.mutable_data_ptr());
  require_ok(kPack, cuda::w4_find_faults(layout, weight, bf16_scales, on_device, stream));
  require_ok(kPack,
             {cudaMemcpyAsync(faults, on_device, sizeof(faults), cudaMemcpyDeviceToHost, stream),
              "reading back the check of codes and scales"});
  require_ok(kPack, {cudaStreamSynchronize(stream), "the check of codes and scales"});
  const auto at = [&](int i) { return static_cast<int64_t>(faults[i]); };
  if (faults[0] != cuda::kNoFault) {
    reject_code(kPack, fetch(weight.codes, at(0), stream), at(0), layout);
  }
  if (faults[1] != cuda::kNoFault) {
    reject_non_finite(kPack, "scales", fetch(weight.scales, at(1), stream),
                      exponent_bits(bf16_scales), at(1), layout);
  }
  if (faults[2] != cuda::kNoFault) {
    reject_non_finite(kPack, "zeros", fetch(weight.zeros, at(2), stream), exponent_bits(false),
                      at(2), layout);
  }
}

Tensor pack_w4(const Tensor& codes, const Tensor& scales, const std::optional<Tensor>& zeros,
               int64_t group_size) {
  const TensorView codes_view(kPack, "codes", codes), scales_view(kPack, "scales", scales);
  std::optional<TensorView> zeros_view;
  if (zeros) zeros_view.emplace(kPack, "zeros", *zeros);
  const w4::Layout layout = require_pack_inputs(kPack, codes_view, scales_view,
                                                zeros_view ? &*zeros_view : nullptr, group_size);
  const torch::stable::accelerator::DeviceGuard guard(codes_view.device_index);
  const cudaStream_t stream = current_stream(codes_view.device_index);
  refuse_capture(stream);

  const Tensor dense_codes = torch::stable::contiguous(codes);
  const Tensor dense_scales = torch::stable::contiguous(scales);
  const Tensor dense_zeros = zeros ? torch::stable::contiguous(*zeros) : dense_scales;
  const cuda::W4Canonical weight{
      .codes = static_cast<const uint8_t*>(dense_codes.const_data_ptr()),
      .scales = static_cast<const uint16_t*>(dense_scales.const_data_ptr()),
      .zeros = zeros ? static_cast<const uint16_t*>(dense_zeros.const_data_ptr()) : nullptr};
  require_sound(layout, weight, scales_view.dtype_code == torch_code(DType::kBF16), codes_view,
                stream);
  Tensor packed = new_packed(layout, codes_view);
  require_ok(kPack, cuda::w4_pack(layout, weight, static_cast<uint8_t*>(packed.mutable_data_ptr()),
                                  stream));
  return packed;
}

std::tuple<Tensor, Tensor, Tensor> unpack_w4(const Tensor& qweight, int64_t n, int64_t k,
                                             int64_t group_size, bool bf16_scales, bool zeros) {
  constexpr const char* kOp = "unpack_w4";
  const TensorView view(kOp, "qweight", qweight);
  const w4::Layout layout = require_layout(kOp, n, k, group_size, zeros);
  const torch::stable::accelerator::DeviceGuard guard(view.device_index);
  const PackedBytes packed(kOp, view, layout, bf16_scales);
  const Unpacked out = new_unpacked(layout, bf16_scales, view);
  require_ok(kOp, cuda::w4_unpack(layout, packed.data(),
                                  static_cast<uint8_t*>(out.codes.mutable_data_ptr()),
                                  static_cast<uint16_t*>(out.scales.mutable_data_ptr()),
                                  static_cast<uint16_t*>(out.zeros.mutable_data_ptr()),
                                  current_stream(view.device_index)));
  return {out.codes, out.scales, out.zeros};
}

}  // namespace
}  // namespace xgemm::ops

STABLE_TORCH_LIBRARY_IMPL(xgemm, CUDA, m) {
  m.impl("pack_w4", TORCH_BOX(&xgemm::ops::pack_w4));
  m.impl("unpack_w4", TORCH_BOX(&xgemm::ops::unpack_w4));
}
#endif  // XGEMM_WITH_CUDA
