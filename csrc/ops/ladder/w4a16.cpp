// The ops of the w4a16 ladder; ladder.cpp has their schemas.
#ifdef XGEMM_WITH_CUDA
#include <cstdint>
#include <tuple>

#include "common/current_device.h"
#include "cuda/ladder/api.h"
#include "ops/boxed.h"
#include "ops/cuda_context.h"
#include "ops/ladder/arguments.h"

namespace xgemm::ops::ladder {
namespace {

namespace gpu = cuda::ladder;
constexpr int kGroup = 128;

// [k / 8, n] and [k / 128, n]; returns n and k.
std::tuple<int64_t, int64_t> require_weights(const char* op, const TensorView& codes,
                                             const TensorView& scales) {
  require_dtype(op, "codes", codes, {DType::kI32});
  require_dtype(op, "scales", scales, {DType::kF16});
  require_contiguous(op, "codes", codes, 2);
  require_contiguous(op, "scales", scales, 2);
  require_same_device(op, "scales", scales, "codes", codes);
  const int64_t n = codes.size(1), k = codes.size(0) * 8;
  require_shape(op, "scales", scales, {k / kGroup, n});
  return {n, k};
}

Tensor product(const Tensor& x, const Tensor& codes, const Tensor& scales, const Tensor& locks,
               int64_t rung) {
  const char* op = "w4a16";
  const TensorView view_x(op, "x", x), view_codes(op, "codes", codes),
      view_scales(op, "scales", scales), view_locks(op, "locks", locks);
  const gpu::QuantizedRung& found = find_rung(op, gpu::w4a16_rungs(), rung);
  const auto [n, k] = require_weights(op, view_codes, view_scales);
  require_dtype(op, "x", view_x, {DType::kF16});
  require_dtype(op, "locks", view_locks, {DType::kI64});
  require_contiguous(op, "x", view_x, 2);
  require_contiguous(op, "locks", view_locks, 1);
  require_same_device(op, "codes", view_codes, "x", view_x);
  require_same_device(op, "locks", view_locks, "x", view_x);
  const int64_t m = view_x.size(0);
  require_shape(op, "x", view_x, {m, k});
  require_multiple(op, rung, "m", m, 1);
  require_multiple(op, rung, "n", n, found.tile_n);
  require_multiple(op, rung, "k", k, found.tile_k);
  if (view_locks.size(0) < gpu::quantized_locks(m, n)) {
    value_error(op, ": locks must have ", gpu::quantized_locks(m, n), " elements or more, got ",
                view_locks.size(0));
  }
  const CurrentDevice device(op, view_x.device_index);
  Tensor y = new_output({m, n}, torch_code(DType::kF16), view_x);
  gpu::QuantizedProduct asked{
      .x = view_x.data(),
      .codes = static_cast<const uint32_t*>(view_codes.data()),
      .scales = view_scales.data(),
      .y = y.mutable_data_ptr(),
      .workspace = nullptr,
      .locks = static_cast<uint64_t*>(view_locks.mutable_data()),
      .m = static_cast<int>(m),
      .n = static_cast<int>(n),
      .k = static_cast<int>(k),
      .sm_count = device_info(view_x.device_index).sm_count,
      .stream = current_stream(view_x.device_index),
  };
  const int64_t bytes = found.workspace_bytes == nullptr ? 0 : found.workspace_bytes(asked);
  const Tensor workspace = new_output({bytes}, torch_code(DType::kI8), view_x);
  asked.workspace = workspace.mutable_data_ptr();
  require_ok(op, found.run(asked));
  return y;
}

std::tuple<Tensor, Tensor> pack(const Tensor& codes, const Tensor& scales) {
  const char* op = "w4a16_pack";
  const TensorView view_codes(op, "codes", codes), view_scales(op, "scales", scales);
  const auto [n, k] = require_weights(op, view_codes, view_scales);
  require_multiple(op, 3, "n", n, 64);
  require_multiple(op, 3, "k", k, kGroup);
  const CurrentDevice device(op, view_codes.device_index);
  Tensor packed = new_output({k / 8, n}, torch_code(DType::kI32), view_codes);
  Tensor packed_scales = new_output({k / kGroup, n}, torch_code(DType::kF16), view_codes);
  require_ok(op, gpu::pack_w4a16({
                     .codes = static_cast<const uint32_t*>(view_codes.data()),
                     .scales = view_scales.data(),
                     .packed_codes = static_cast<uint32_t*>(packed.mutable_data_ptr()),
                     .packed_scales = packed_scales.mutable_data_ptr(),
                     .n = static_cast<int>(n),
                     .k = static_cast<int>(k),
                     .stream = current_stream(view_codes.device_index),
                 }));
  return {packed, packed_scales};
}

bool is_packed(int64_t rung) { return find_rung("w4a16_packed", gpu::w4a16_rungs(), rung).packed; }

}  // namespace
}  // namespace xgemm::ops::ladder

STABLE_TORCH_LIBRARY_IMPL(xgemm_ladder, CUDA, m) {
  m.impl("w4a16", TORCH_BOX(&xgemm::ops::ladder::product));
  m.impl("w4a16_pack", TORCH_BOX(&xgemm::ops::ladder::pack));
}

STABLE_TORCH_LIBRARY_IMPL(xgemm_ladder, CompositeExplicitAutograd, m) {
  m.impl("w4a16_packed", TORCH_BOX(&xgemm::ops::ladder::is_packed));
}
#endif
