// The rungs of the ladders, as functions over addresses.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/ladder/api.h"
#include "emulator/engine.h"

namespace bind_ladder {

namespace py = pybind11;
namespace ladder = xgemm::cuda::ladder;
namespace emulator = xgemm::emulator;

namespace {

using Address = uintptr_t;
using Tile = std::tuple<int, int, int>;

void require_ok(const xgemm::Status& status) {
  if (status.ok()) return;
  throw std::runtime_error(std::string(status.where) + ": " + cudaGetErrorString(status.error));
}

void run_reduce(int rung, Address x, Address out, int64_t count, int sm_count) {
  const ladder::SumRung& found = ladder::reduce_rungs()[static_cast<size_t>(rung)];
  const emulator::Workspace partials(count / found.tile * 4);
  require_ok(found.run({reinterpret_cast<const float*>(x), static_cast<float*>(partials.get()),
                        reinterpret_cast<float*>(out), count, sm_count, nullptr}));
}

std::span<const ladder::ProductRung> product_rungs(const std::string& name) {
  if (name == "sgemm") return ladder::sgemm_rungs();
  if (name == "hgemm") return ladder::hgemm_rungs();
  if (name == "hopper") return ladder::hopper_rungs();
  throw std::invalid_argument("no such ladder: " + name);
}

void run_product(const std::string& name, int rung, Address a, Address b, Address c,
                 std::tuple<int, int, int> mnk, int sm_count) {
  const auto [m, n, k] = mnk;
  require_ok(product_rungs(name)[static_cast<size_t>(rung)].run(
      {reinterpret_cast<const void*>(a), reinterpret_cast<const void*>(b),
       reinterpret_cast<void*>(c), m, n, k, sm_count, nullptr}));
}

// Codes and scales are packed first, where the rung reads them so.
void run_w4a16(int rung, Address x, Address codes, Address scales, Address y, Address locks,
               std::tuple<int, int, int> mnk, int sm_count) {
  const auto [m, n, k] = mnk;
  const ladder::QuantizedRung& found = ladder::w4a16_rungs()[static_cast<size_t>(rung)];
  const emulator::Workspace packed(int64_t{n} * k / 2), packed_scales(int64_t{n} * k / 64);
  auto* words = reinterpret_cast<const uint32_t*>(codes);
  auto* factors = reinterpret_cast<const void*>(scales);
  if (found.packed) {
    auto* to = static_cast<uint32_t*>(packed.get());
    require_ok(ladder::pack_w4a16({words, factors, to, packed_scales.get(), n, k, nullptr}));
    words = to;
    factors = packed_scales.get();
  }
  ladder::QuantizedProduct product{.x = reinterpret_cast<const void*>(x),
                                   .codes = words,
                                   .scales = factors,
                                   .y = reinterpret_cast<void*>(y),
                                   .workspace = nullptr,
                                   .locks = reinterpret_cast<uint64_t*>(locks),
                                   .m = m,
                                   .n = n,
                                   .k = k,
                                   .sm_count = sm_count,
                                   .stream = nullptr};
  const emulator::Workspace workspace(
      found.workspace_bytes == nullptr ? 16 : found.workspace_bytes(product));
  product.workspace = workspace.get();
  require_ok(found.run(product));
}

// Returns the work.
double run_peak(int instruction, Address x, int64_t count, Address out, int steps) {
  int64_t clocks[2] = {};
  const ladder::Peak peak{reinterpret_cast<const float*>(x),
                          count,
                          reinterpret_cast<float*>(out),
                          clocks,
                          steps,
                          1,
                          nullptr};
  const auto which = static_cast<ladder::Instruction>(instruction);
  require_ok(ladder::run_peak(which, peak));
  if (clocks[0] <= 0 || clocks[1] <= 0) throw std::runtime_error("a clock was not read");
  return ladder::peak_work(which, peak);
}

// Cycles, loads and the sums of the threads.
std::tuple<int64_t, int64_t, std::vector<float>> run_pattern(Address addresses, int width,
                                                             int bytes, int steps) {
  int64_t cycles = 0;
  std::vector<float> out(ladder::kPatternThreads);
  require_ok(ladder::run_pattern({reinterpret_cast<const int*>(addresses), width, bytes, steps,
                                  out.data(), &cycles, nullptr}));
  return {cycles, ladder::pattern_loads(steps), out};
}

std::tuple<int64_t, std::vector<float>> run_fma(bool dependent, int steps) {
  int64_t cycles = 0;
  std::vector<float> out(32);
  require_ok(ladder::run_fma({dependent, steps, out.data(), &cycles, nullptr}));
  return {cycles, out};
}

int64_t run_stride(Address x, int64_t loads, int stride, float sought) {
  int64_t found = -1;
  require_ok(ladder::run_stride(
      {reinterpret_cast<const float*>(x), loads, stride, sought, &found, nullptr}));
  return found;
}

}  // namespace

void define(py::module_& m) {
  m.def("ladder_reduce", &run_reduce);
  m.def("ladder_reduce_tiles", [] {
    std::vector<int> tiles;
    for (const auto& rung : ladder::reduce_rungs()) tiles.push_back(rung.tile);
    return tiles;
  });
  m.def("ladder_product", &run_product);
  m.def("ladder_w4a16", &run_w4a16);
  m.def("ladder_w4a16_locks", &ladder::quantized_locks);
  m.def("ladder_w4a16_tiles", [] {
    std::vector<std::tuple<int, int>> tiles;
    for (const auto& rung : ladder::w4a16_rungs()) tiles.emplace_back(rung.tile_n, rung.tile_k);
    return tiles;
  });
  m.def("probe_pattern", &run_pattern);
  m.def("probe_fma", &run_fma);
  m.def("probe_stride", &run_stride);
  m.def("ladder_peak", &run_peak);
  m.def("ladder_peak_threads", &ladder::peak_threads);
  m.def("ladder_product_tiles", [](const std::string& name) {
    std::vector<Tile> tiles;
    for (const auto& rung : product_rungs(name)) {
      tiles.emplace_back(rung.tile_m, rung.tile_n, rung.tile_k);
    }
    return tiles;
  });
}

}  // namespace bind_ladder
