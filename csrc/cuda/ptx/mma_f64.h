// mma.sync m16n8k4 of float64 (sm_90): exact products of what was float32, summed in float64.
#pragma once

namespace xgemm::ptx {

// d += a b. Lane 4 g + t holds a[g][t] and a[g + 8][t] in a0 and a1, b[t][g] in b, d[g][2 t ...] in
// d[0..1] and d[g + 8][2 t ...] in d[2..3]. Volatile, as is the conversion below: the order in
// which the mainloop is written is the one that hides the conversions.
__device__ inline void mma_m16n8k4_f64(double (&d)[4], double a0, double a1, double b) {
  asm volatile(
      "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a0), "d"(a1), "d"(b));
}

__device__ inline double to_double(float x) {
  double wide;
  asm volatile("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(x));
  return wide;
}

}  // namespace xgemm::ptx
