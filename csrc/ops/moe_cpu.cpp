// moe.w4a16 on the CPU: each expert's rows gathered, multiplied by the kernels of mul.w4a16, and
// put where their slots are.
#include <algorithm>
#include <cstring>

#include "common/math.h"
#include "cpu/isa/convert.h"
#include "cpu/sgemm/api.h"
#include "ops/moe.h"
#include "ops/w4_checks.h"

namespace xgemm::ops {
namespace {

const char* advance(const void* data, int64_t bytes) {
  return static_cast<const char*>(data) + bytes;
}
char* advance(void* data, int64_t bytes) { return static_cast<char*>(data) + bytes; }

struct ExpertRows {
  int64_t expert;
  const int32_t* slots;  // [count]
  int64_t count;
};

// The rows of `call.sorted` that are expert `expert`'s; what is no slot is refused.
ExpertRows rows_of(const char* op, const MoeCall& call, int64_t expert) {
  const int32_t begin = call.sorted[expert], end = call.sorted[expert + 1];
  if (begin < 0 || end < begin || end > call.slots()) {
    value_error(op, ": sorted must be moe_sort's result, got bounds ", begin, " and ", end,
                " of expert ", expert);
  }
  const int32_t* slots = call.sorted + call.experts + 1 + begin;
  for (int64_t i = 0; i < end - begin; ++i) {
    if (slots[i] < 0 || slots[i] >= call.slots()) {
      value_error(op, ": sorted must be moe_sort's result, got slot ", slots[i], " of ",
                  call.slots());
    }
  }
  return {expert, slots, end - begin};
}

// x's rows of these slots, their channels in the expert's order.
void gather(const MoeCall& call, const ExpertRows& rows, void* to, const Parallel& parallel) {
  const int64_t k = call.weight.layout.k, item = element_size(call.dtype);
  const int32_t* perm = call.perm == nullptr ? nullptr : call.perm + rows.expert * k;
  parallel.for_each(rows.count, [&](int64_t i) {
    const char* from = advance(call.x, rows.slots[i] / call.row_divisor * call.x_row_stride * item);
    char* row = advance(to, i * k * item);
    if (perm == nullptr) {
      std::memcpy(row, from, static_cast<size_t>(k * item));
      return;
    }
    for (int64_t j = 0; j < k; ++j) {
      std::memcpy(row + j * item, from + perm[j] * item, static_cast<size_t>(item));
    }
  });
}

// y[count, n] = activation(x W^T + bias) of one expert; rows are contiguous.
void multiply(const MoeCall& call, const ExpertRows& rows, const void* x, void* y,
              const Parallel& parallel) {
  const int64_t n = call.weight.layout.n, k = call.weight.layout.k;
  cpu::W4Problem w4{.m = rows.count,
                    .weight = call.weight,
                    .x = x,
                    .dtype = call.dtype,
                    .x_row_stride = k,
                    .y = y,
                    .y_row_stride = n};
  w4.weight.data += rows.expert * call.expert_bytes;
  if (call.bias != nullptr) {
    w4.bias = advance(call.bias, rows.expert * n * element_size(call.dtype));
  }
  if (!is_gated(call.activation)) w4.activation = activation_of(call.activation);
  if (k > 0 && !w4.weight.fp4 && cpu::w4a16_streams(w4)) return cpu::w4a16_stream(w4, parallel);
  const cpu::W4Panels panels(w4.weight);
  GemmProblem dense;
  dense.m = w4.m, dense.n = n, dense.k = k;
  dense.dtype = w4.dtype;
  dense.a = {.data = x, .row_stride = k, .col_stride = 1};
  dense.d = y, dense.d_row_stride = n;
  dense.bias = w4.bias;
  dense.activation = w4.activation;
  cpu::gemm(dense, parallel, &panels);
}

// One row of a product to its slot's row: as it is, or the activated gate times the rest.
void store(const MoeCall& call, const char* y, char* to) {
  const int64_t columns = call.columns(), item = element_size(call.dtype);
  if (!is_gated(call.activation)) {
    std::memcpy(to, y, static_cast<size_t>(columns * item));
    return;
  }
  const Activation act = activation_of(call.activation);
  for (int64_t j = 0; j < columns; ++j) {
    const float gate = cpu::load_float(y + j * item, call.dtype);
    const float up = cpu::load_float(y + (columns + j) * item, call.dtype);
    cpu::store_float(to + j * item, call.dtype, activate(act, gate) * up);
  }
}

// result[t] = the sum over j of weights[t, j] y[t, j], in the order of j.
void combine(const MoeCall& call, const void* y, const Parallel& parallel) {
  const int64_t columns = call.columns(), item = element_size(call.dtype);
  const int64_t weight_item = element_size(call.weights_dtype);
  parallel.for_each(call.tokens, [&](int64_t t) {
    char* to = advance(call.result, t * columns * item);
    for (int64_t c = 0; c < columns; ++c) {
      float sum = 0.0f;
      for (int64_t j = 0; j < call.top_k; ++j) {
        const int64_t slot = t * call.top_k + j;
        const float weight =
            cpu::load_float(advance(call.weights, slot * weight_item), call.weights_dtype);
        sum += weight * cpu::load_float(advance(y, (slot * columns + c) * item), call.dtype);
      }
      cpu::store_float(to + c * item, call.dtype, sum);
    }
  });
}

}  // namespace

void run_moe_cpu(const char* op, const MoeCall& call, const TensorView& like) {
  const TorchParallel parallel;
  const w4::Layout& layout = call.weight.layout;
  const int64_t item = element_size(call.dtype), columns = call.columns();
  if (call.perm != nullptr) {
    for (int64_t e = 0; e < call.experts; ++e) {
      require_perm_values(op, call.perm + e * layout.k, layout.k);
    }
  }
  std::optional<Tensor> of_slots;
  void* y = call.result;
  if (call.weights != nullptr) {
    y = of_slots.emplace(new_output({call.slots(), columns}, like.dtype_code, like))
            .mutable_data_ptr();
  }
  std::memset(y, 0, static_cast<size_t>(call.slots() * columns * item));
  int64_t most = 0;
  for (int64_t e = 0; e < call.experts; ++e) most = std::max(most, rows_of(op, call, e).count);
  Tensor x = new_output({most, layout.k}, like.dtype_code, like);
  Tensor product = new_output({most, layout.n}, like.dtype_code, like);
  for (int64_t e = 0; e < call.experts; ++e) {
    const ExpertRows rows = rows_of(op, call, e);
    if (rows.count == 0) continue;
    gather(call, rows, x.mutable_data_ptr(), parallel);
    multiply(call, rows, x.const_data_ptr(), product.mutable_data_ptr(), parallel);
    const void* made = product.const_data_ptr();
    parallel.for_each(rows.count, [&](int64_t i) {
      store(call, advance(made, i * layout.n * item), advance(y, rows.slots[i] * columns * item));
    });
  }
  if (call.weights != nullptr) combine(call, y, parallel);
}

}  // namespace xgemm::ops
