#include "cpu/isa/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace xgemm::cpu {
namespace {

// Linux gives a process the 8 KiB of tile registers on request only; kernels before 5.16 and some
// sandboxes refuse.
bool request_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Up to `limit`: what is not used is not asked for.
Isa detect(Isa limit) {
  // libgcc's checks include the operating system's support for the wide registers.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return Isa::kGeneric;
  }
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl");
  if (!avx512) return Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512vnni")) return Isa::kAvx512;
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512dq")) {
    return Isa::kAvx512Vnni;
  }
  const bool amx = limit == Isa::kAmx && __builtin_cpu_supports("amx-tile") &&
                   __builtin_cpu_supports("amx-bf16") && request_amx();
  if (amx) return Isa::kAmx;
  // Intel's cores do dot products of bf16 at half the rate of the fp32 FMAs that take their place
  // (a Xeon's products of 16 to 256 rows 1.65x to 1.9x the time), AMD's at twice it.
  return limit == Isa::kAmx && __builtin_cpu_is("intel") ? Isa::kAvx512Vnni : Isa::kAvx512Bf16;
}

Isa limit_from_environment() {
  const char* value = std::getenv("XGEMM_CPU_ISA");
  const std::string_view word(value == nullptr ? "" : value);
  for (int i = 0; i < static_cast<int>(Isa::kAmx); ++i) {
    if (word == name_of(static_cast<Isa>(i))) return static_cast<Isa>(i);
  }
  return Isa::kAmx;
}

}  // namespace

Isa isa() {
  static const Isa chosen = [] {
    const Isa limit = limit_from_environment(), best = detect(limit);
    return best < limit ? best : limit;
  }();
  return chosen;
}

const char* name_of(Isa isa) {
  constexpr const char* kNames[] = {"generic", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"};
  return kNames[static_cast<int>(isa)];
}

}  // namespace xgemm::cpu
