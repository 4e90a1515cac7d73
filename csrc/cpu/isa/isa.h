// Which instruction set the CPU kernels use, decided once at run time.
#pragma once

#include <cstdint>

namespace xgemm::cpu {

// kAvx512Bf16 has VNNI, too, and kAmx has AVX512_BF16.
enum class Isa : int8_t { kGeneric, kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };

// The best set that this CPU and operating system run, lowered by
// XGEMM_CPU_ISA=generic|avx2|avx512|avx512vnni|avx512bf16|amx (read once; a set the CPU lacks, or
// another word, changes nothing). The first call asks Linux for this process's AMX state; where
// that is refused, kAmx is not given.
Isa isa();

const char* name_of(Isa isa);

}  // namespace xgemm::cpu

// No file is compiled for more than the baseline; a function that uses more says so.
#define XGEMM_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
// For helpers: inlined into callers of the same target, so that vectors stay in registers.
#define XGEMM_INLINE_AVX2 __attribute__((always_inline, target("avx2,fma,f16c"))) inline
#define XGEMM_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")))
#define XGEMM_INLINE_AVX512 \
  __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx2,fma,f16c"))) inline
#define XGEMM_TARGET_VNNI \
  __attribute__((target("avx512vnni,avx512f,avx512bw,avx512vl,avx2,fma,f16c")))
#define XGEMM_INLINE_VNNI       \
  __attribute__((always_inline, \
                 target("avx512vnni,avx512f,avx512bw,avx512vl,avx2,fma,f16c"))) inline
#define XGEMM_TARGET_BF16 \
  __attribute__((target("avx512bf16,avx512dq,avx512f,avx512bw,avx512vl,avx2,fma,f16c")))
