// How long things take that overlap.
#pragma once

#include <cmath>

namespace xgemm::cuda::gemm::sm90 {

inline double fourth(double x) { return (x * x) * (x * x); }

// A little more than the longest.
inline double together(double a, double b, double c) {
  return std::sqrt(std::sqrt(fourth(a) + fourth(b) + fourth(c)));
}

}  // namespace xgemm::cuda::gemm::sm90
