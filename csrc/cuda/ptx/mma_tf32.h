// mma.sync m16n8k8 (sm_80) over TF32 numbers in registers, fp32 accumulators.
#pragma once

namespace xgemm::ptx {

// d += a b; the lowest 13 bits of a and b are not looked at. Lane 4 g + t holds
// a[g + 8 (i % 2)][t + 4 (i / 2)] in a[i], b[t + 4 i][g] in b{i}, d[g][2 t ...] in d[0..1] and
// d[g + 8][2 t ...] in d[2..3].
__device__ inline void mma_m16n8k8_tf32(float (&d)[4], const float (&a)[4], float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

}  // namespace xgemm::ptx
