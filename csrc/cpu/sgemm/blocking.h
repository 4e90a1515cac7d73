// The sizes of the blocked product, one line for each instruction set.
#pragma once

#include <cstdint>

#include "cpu/isa/caches.h"
#include "cpu/isa/isa.h"

namespace xgemm::cpu::dense {

// MR x NR: the tile whose sums stay in registers. A block of MC x KC stays in the L2 cache, a panel
// of KC x NR in the L1 cache, a block of KC x NC of B, shared by all threads, in the L3 cache. With
// AVX-512 the panel stays in the L2 cache, too: 128 bytes of it for 28 instructions are few.
struct Blocking {
  int mr, nr, mc, kc, nc;
};

// The largest blocks that pay: on a Xeon with 2 MiB of L2 cache twice the MC or KC of AVX-512 is
// 0.95x to 1.0x as fast.
inline constexpr Blocking kLargestBlocking[] = {
    {4, 8, 128, 256, 2048},    // generic: 8 registers of 4 floats
    {6, 16, 192, 256, 4096},   // avx2: 12 of the 16 registers are sums
    {14, 32, 224, 512, 4096},  // avx512: 28 of the 32 registers are sums
};

// The blocks for caches of these sizes. A panel takes half of the L1 cache, or with AVX-512 a 16th
// of the L2 cache; with it a block of A takes half of the L2 cache; a block of B a quarter of the
// L3 cache. The dense kernels have no use for VNNI.
constexpr Blocking blocking_of(Isa isa, const CacheSizes& caches = kUsualCaches) {
  const bool wide = isa >= Isa::kAvx512;
  Blocking sizes = kLargestBlocking[static_cast<int>(wide ? Isa::kAvx512 : isa)];
  constexpr int64_t kFloat = sizeof(float), kGrain = 8;
  // As many multiples of `step` as `bytes` hold of `each`, at least one, at most `most`.
  const auto fit = [](int64_t bytes, int64_t each, int step, int most) {
    const int64_t count = bytes / each / step * step;
    return static_cast<int>(count < step ? step : count > most ? most : count);
  };
  const int64_t panel = wide ? caches.l2 / 16 : caches.l1 / 2;
  sizes.kc = fit(panel, sizes.nr * kFloat, kGrain, sizes.kc);
  sizes.mc =
      fit(caches.l2 / 2 - sizes.kc * sizes.nr * kFloat, sizes.kc * kFloat, sizes.mr, sizes.mc);
  sizes.nc = fit(caches.l3 / 4, sizes.kc * kFloat, sizes.nr, sizes.nc);
  return sizes;
}

// A row count with which m splits into panels of nearly equal height, at most mr.
constexpr int64_t panel_rows(int64_t m, int64_t mr) {
  const int64_t panels = (m + mr - 1) / mr;
  return panels == 0 ? mr : (m + panels - 1) / panels;
}

}  // namespace xgemm::cpu::dense
