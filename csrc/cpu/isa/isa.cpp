#include "cpu/isa/isa.h"

#include <cstdlib>
#include <string_view>

namespace xgemm::cpu {
namespace {

Isa detect() {
  // libgcc's checks include the operating system's support for the wide registers.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return Isa::kGeneric;
  }
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl");
  if (!avx512) return Isa::kAvx2;
  return __builtin_cpu_supports("avx512vnni") ? Isa::kAvx512Vnni : Isa::kAvx512;
}

Isa limit_from_environment() {
  const char* value = std::getenv("XGEMM_CPU_ISA");
  if (value == nullptr) return Isa::kAvx512Vnni;
  const std::string_view word(value);
  if (word == "generic") return Isa::kGeneric;
  if (word == "avx2") return Isa::kAvx2;
  return word == "avx512" ? Isa::kAvx512 : Isa::kAvx512Vnni;
}

}  // namespace

Isa isa() {
  static const Isa chosen = [] {
    const Isa best = detect(), limit = limit_from_environment();
    return best < limit ? best : limit;
  }();
  return chosen;
}

const char* name_of(Isa isa) {
  constexpr const char* kNames[] = {"generic", "avx2", "avx512", "avx512vnni"};
  return kNames[static_cast<int>(isa)];
}

}  // namespace xgemm::cpu
