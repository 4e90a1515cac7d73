// The ops of the ladders, in a library of their own: torch.ops.xgemm_ladder.
//
// Each takes the number of a rung, and contiguous tensors of the ladder's one dtype, whose sizes
// the rung's tile must divide.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <tuple>

#include "cpu/isa/isa.h"
#include "cpu/ladder/api.h"
#include "ops/boxed.h"
#include "ops/checks.h"
#include "ops/ladder/arguments.h"

#ifdef XGEMM_WITH_CUDA
#include "common/current_device.h"
#include "cuda/ladder/api.h"
#include "ops/cuda_context.h"
#endif

namespace xgemm::ops::ladder {
namespace {

// [m, k] and [k, n]: what both must be.
void require_product(const char* op, const TensorView& a, const TensorView& b, DType dtype) {
  require_dtype(op, "a", a, {dtype});
  require_dtype(op, "b", b, {dtype});
  require_same_device(op, "b", b, "a", a);
  require_contiguous(op, "a", a, 2);
  require_contiguous(op, "b", b, 2);
}

void require_avx2(const char* op) {
  if (cpu::isa() == cpu::Isa::kGeneric) {
    throw std::runtime_error(concat(op, ": needs a CPU with AVX2, FMA and F16C"));
  }
}

Tensor cpu_product(const Tensor& a, const Tensor& b, int64_t rung) {
  const TensorView view_a("cpu", "a", a), view_b("cpu", "b", b);
  const cpu::ladder::Rung run = find_rung("cpu", cpu::ladder::rungs(), rung);
  require_product("cpu", view_a, view_b, DType::kF32);
  const int64_t m = view_a.size(0), k = view_a.size(1), n = view_b.size(1);
  require_shape("cpu", "b", view_b, {k, n});
  require_avx2("cpu");
  Tensor c = new_output({m, n}, torch_code(DType::kF32), view_a);
  run({static_cast<const float*>(view_a.data()), static_cast<const float*>(view_b.data()),
       static_cast<float*>(c.mutable_data_ptr()), m, n, k});
  return c;
}

// alpha op(A) op(B) + beta C of rung 4; what BLAS calls a column is a row of these tensors.
void cpu_blas(const Tensor& c, const Tensor& a, const Tensor& b, bool transa, bool transb,
              double alpha, double beta) {
  const TensorView view_a("cpu_blas", "a", a), view_b("cpu_blas", "b", b),
      view_c("cpu_blas", "c", c);
  require_product("cpu_blas", view_a, view_b, DType::kF32);
  require_dtype("cpu_blas", "c", view_c, {DType::kF32});
  require_contiguous("cpu_blas", "c", view_c, 2);
  const int64_t n = view_c.size(0), m = view_c.size(1), k = view_a.size(transa ? 1 : 0);
  require_shape("cpu_blas", "a", view_a, {transa ? m : k, transa ? k : m});
  require_shape("cpu_blas", "b", view_b, {transb ? k : n, transb ? n : k});
  require_avx2("cpu_blas");
  cpu::ladder::sgemm(transa, transb, m, n, k, static_cast<float>(alpha),
                     static_cast<const float*>(view_a.data()), view_a.size(1),
                     static_cast<const float*>(view_b.data()), view_b.size(1),
                     static_cast<float>(beta), static_cast<float*>(view_c.mutable_data()), m);
}

// FLOP/s of a core, and its clock in Hz.
std::tuple<double, double> cpu_peak(double seconds) {
  require_avx2("cpu_peak");
  const cpu::ladder::Peak peak = cpu::ladder::measure_peak(seconds);
  return {peak.flops, peak.hertz};
}

#ifdef XGEMM_WITH_CUDA

namespace gpu = cuda::ladder;

Tensor reduce(const Tensor& x, int64_t rung) {
  const TensorView view("reduce", "x", x);
  const gpu::SumRung& found = find_rung("reduce", gpu::reduce_rungs(), rung);
  require_dtype("reduce", "x", view, {DType::kF32});
  require_contiguous("reduce", "x", view, 1);
  const int64_t count = view.size(0);
  require_multiple("reduce", rung, "the number of elements", count, found.tile);
  const CurrentDevice device("reduce", view.device_index);
  const Tensor partials = new_output({count / found.tile}, torch_code(DType::kF32), view);
  Tensor out = new_output({}, torch_code(DType::kF32), view);
  require_ok("reduce", found.run({
                           .x = static_cast<const float*>(view.data()),
                           .partials = static_cast<float*>(partials.mutable_data_ptr()),
                           .out = static_cast<float*>(out.mutable_data_ptr()),
                           .count = count,
                           .sm_count = device_info(view.device_index).sm_count,
                           .stream = current_stream(view.device_index),
                       }));
  return out;
}

// One of the ladders of products; c has the operands' type.
struct ProductLadder {
  const char* op;
  DType dtype;
  bool b_transposed;
  std::span<const gpu::ProductRung> rungs;
};

Tensor product(const ProductLadder& ladder, const Tensor& a, const Tensor& b, int64_t rung) {
  const char* op = ladder.op;
  const TensorView view_a(op, "a", a), view_b(op, "b", b);
  const gpu::ProductRung& found = find_rung(op, ladder.rungs, rung);
  require_product(op, view_a, view_b, ladder.dtype);
  const int64_t m = view_a.size(0), k = view_a.size(1),
                n = view_b.size(ladder.b_transposed ? 0 : 1);
  require_shape(op, "b", view_b, {ladder.b_transposed ? n : k, ladder.b_transposed ? k : n});
  require_multiple(op, rung, "m", m, found.tile_m);
  require_multiple(op, rung, "n", n, found.tile_n);
  require_multiple(op, rung, "k", k, found.tile_k);
  const CurrentDevice device(op, view_a.device_index);
  Tensor c = new_output({m, n}, torch_code(ladder.dtype), view_a);
  require_ok(op, found.run({
                     .a = view_a.data(),
                     .b = view_b.data(),
                     .c = c.mutable_data_ptr(),
                     .m = static_cast<int>(m),
                     .n = static_cast<int>(n),
                     .k = static_cast<int>(k),
                     .sm_count = device_info(view_a.device_index).sm_count,
                     .stream = current_stream(view_a.device_index),
                 }));
  return c;
}

Tensor sgemm(const Tensor& a, const Tensor& b, int64_t rung) {
  return product({"sgemm", DType::kF32, false, gpu::sgemm_rungs()}, a, b, rung);
}

Tensor hgemm(const Tensor& a, const Tensor& b, int64_t rung) {
  return product({"hgemm", DType::kF16, false, gpu::hgemm_rungs()}, a, b, rung);
}

Tensor hopper(const Tensor& a, const Tensor& b, int64_t rung) {
  const TensorView view("hopper", "a", a);
  const int capability = device_info(view.device_index).capability;
  if (capability != 90) {
    throw std::runtime_error(concat("hopper: needs a GPU of compute capability 9.0, got ",
                                    capability / 10, ".", capability % 10));
  }
  return product({"hopper", DType::kBF16, true, gpu::hopper_rungs()}, a, b, rung);
}

// What m, n and k must be multiples of; of a sum the number of elements, 1 and 1.
std::tuple<int64_t, int64_t, int64_t> tile(const StringArg& ladder, int64_t rung) {
  const std::string_view name = ladder.text;
  if (name == "reduce") return {find_rung("tile", gpu::reduce_rungs(), rung).tile, 1, 1};
  if (name == "w4a16") {
    const gpu::QuantizedRung& found = find_rung("tile", gpu::w4a16_rungs(), rung);
    return {1, found.tile_n, found.tile_k};
  }
  if (name != "sgemm" && name != "hgemm" && name != "hopper") {
    value_error("tile: ladder must be reduce, sgemm, hgemm, hopper or w4a16, got ",
                printable(name));
  }
  const gpu::ProductRung& found = find_rung("tile",
                                            name == "sgemm"   ? gpu::sgemm_rungs()
                                            : name == "hgemm" ? gpu::hgemm_rungs()
                                                              : gpu::hopper_rungs(),
                                            rung);
  return {found.tile_m, found.tile_n, found.tile_k};
}

// Runs `steps` of an instruction, or reads x; returns the FLOP, or the bytes. To `clocks` are added
// the cycles and the nanoseconds of a multiprocessor.
double peak(const Tensor& clocks, const Tensor& x, const StringArg& instruction, int64_t steps) {
  constexpr std::string_view kNames[] = {"ffma", "mma", "read", "wgmma"};
  const TensorView view("peak", "x", x), view_clocks("peak", "clocks", clocks);
  const auto* name = std::find(std::begin(kNames), std::end(kNames), instruction.text);
  if (name == std::end(kNames)) {
    value_error("peak: instruction must be ffma, mma, read or wgmma, got ",
                printable(instruction.text));
  }
  require_dtype("peak", "x", view, {DType::kF32});
  require_dtype("peak", "clocks", view_clocks, {DType::kI64});
  require_contiguous("peak", "x", view, 1);
  require_shape("peak", "clocks", view_clocks, {2});
  require_multiple("peak", 0, "the number of elements", view.size(0), 4);
  const CurrentDevice device("peak", view.device_index);
  const int sm_count = device_info(view.device_index).sm_count;
  const Tensor out = new_output({gpu::peak_threads(sm_count)}, torch_code(DType::kF32), view);
  const gpu::Peak asked{
      .x = static_cast<const float*>(view.data()),
      .count = view.size(0),
      .out = static_cast<float*>(out.mutable_data_ptr()),
      .clocks = static_cast<int64_t*>(view_clocks.mutable_data()),
      .steps = static_cast<int>(steps),
      .sm_count = sm_count,
      .stream = current_stream(view.device_index),
  };
  const auto which = static_cast<gpu::Instruction>(name - std::begin(kNames));
  require_ok("peak", gpu::run_peak(which, asked));
  return gpu::peak_work(which, asked);
}

#endif

}  // namespace
}  // namespace xgemm::ops::ladder

STABLE_TORCH_LIBRARY(xgemm_ladder, m) {
  m.def("cpu(Tensor a, Tensor b, int rung) -> Tensor");
  m.def(
      "cpu_blas(Tensor(a!) c, Tensor a, Tensor b, bool transa, bool transb, float alpha, "
      "float beta) -> ()");
  m.def("cpu_peak(float seconds) -> (float, float)");
  m.def("reduce(Tensor x, int rung) -> Tensor");
  m.def("sgemm(Tensor a, Tensor b, int rung) -> Tensor");
  m.def("peak(Tensor(a!) clocks, Tensor x, str instruction, int steps) -> float");
  m.def("tile(str ladder, int rung) -> (int, int, int)");
  m.def("hgemm(Tensor a, Tensor b, int rung) -> Tensor");
  m.def("hopper(Tensor a, Tensor b, int rung) -> Tensor");
  m.def(
      "w4a16(Tensor x, Tensor codes, Tensor scales, Tensor(a!) locks, int rung) -> "
      "Tensor");
  m.def("w4a16_pack(Tensor codes, Tensor scales) -> (Tensor, Tensor)");
  m.def("w4a16_packed(int rung) -> bool");
  m.def(
      "probe_pattern(Tensor(a!) cycles, Tensor addresses, int width, int bytes, int steps) -> "
      "int");
  m.def("probe_pattern_loads(int steps) -> int");
  m.def("probe_fma(Tensor(a!) cycles, bool dependent, int steps) -> int");
  m.def("probe_stride(Tensor(a!) found, Tensor x, int stride, float sought) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(xgemm_ladder, CompositeExplicitAutograd, m) {
  m.impl("cpu_peak", TORCH_BOX(&xgemm::ops::ladder::cpu_peak));
#ifdef XGEMM_WITH_CUDA
  m.impl("tile", TORCH_BOX(&xgemm::ops::ladder::tile));
#endif
}

STABLE_TORCH_LIBRARY_IMPL(xgemm_ladder, CPU, m) {
  m.impl("cpu", TORCH_BOX(&xgemm::ops::ladder::cpu_product));
  m.impl("cpu_blas", TORCH_BOX(&xgemm::ops::ladder::cpu_blas));
}

#ifdef XGEMM_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(xgemm_ladder, CUDA, m) {
  m.impl("reduce", TORCH_BOX(&xgemm::ops::ladder::reduce));
  m.impl("sgemm", TORCH_BOX(&xgemm::ops::ladder::sgemm));
  m.impl("peak", TORCH_BOX(&xgemm::ops::ladder::peak));
  m.impl("hgemm", TORCH_BOX(&xgemm::ops::ladder::hgemm));
  m.impl("hopper", TORCH_BOX(&xgemm::ops::ladder::hopper));
}
#endif
