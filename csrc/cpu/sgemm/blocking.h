// The sizes of the blocked product, one line for each instruction set.
#pragma once

#include "cpu/isa/isa.h"

namespace xgemm::cpu::dense {

// MR x NR: the tile whose sums stay in registers. A block of MC x KC stays in the L2 cache, a panel
// of KC x NR in the L1 cache, a block of KC x NC of B, shared by all threads, in the L3 cache. With
// AVX-512 the panel stays in the L2 cache, too: 128 bytes of it for 28 instructions are few.
struct Blocking {
  int mr, nr, mc, kc, nc;
};

inline constexpr Blocking kBlocking[] = {
    {4, 8, 128, 256, 2048},    // generic: 8 registers of 4 floats
    {6, 16, 192, 256, 4096},   // avx2: 12 of the 16 registers are sums
    {14, 32, 224, 512, 4096},  // avx512: 28 of the 32 registers are sums
};

// The dense kernels have no use for VNNI.
constexpr const Blocking& blocking_of(Isa isa) {
  return kBlocking[static_cast<int>(isa < Isa::kAvx512 ? isa : Isa::kAvx512)];
}

// A row count with which m splits into panels of nearly equal height, at most mr.
constexpr int64_t panel_rows(int64_t m, int64_t mr) {
  const int64_t panels = (m + mr - 1) / mr;
  return panels == 0 ? mr : (m + panels - 1) / panels;
}

}  // namespace xgemm::cpu::dense
