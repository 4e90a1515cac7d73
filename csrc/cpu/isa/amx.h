// AMX: the instructions on tile registers, and their configuration.
#pragma once

#include <cstdint>

// By asm statements: gcc 12's intrinsics do not say that they read and write memory. No compiler
// allocates tile registers, so none is saved or clobbered.
#define XGEMM_TILE_LOAD(tile, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile::"r"(from), "r"(stride) : "memory")
#define XGEMM_TILE_STORE(tile, to, stride) \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(stride) : "memory")
#define XGEMM_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile::)
// sums += a b
#define XGEMM_TILE_MULTIPLY(sums, a, b) \
  asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sums::)

namespace xgemm::cpu::amx {

// Eight tiles of 64 bytes a row.
struct TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64, "LDTILECFG reads 64 bytes");

inline void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
inline void release() { asm volatile("tilerelease" ::); }

}  // namespace xgemm::cpu::amx
