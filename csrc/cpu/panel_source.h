// Where the blocked GEMM driver gets an operand that is not a plain strided matrix.
#pragma once

#include <cstdint>

namespace xgemm::cpu {

// A [K, N] operand that writes its own packed panels: w4a16 dequantizes here, so that a quantized
// weight never becomes a whole float matrix.
class PanelSource {
 public:
  virtual ~PanelSource() = default;
  // Writes rows [k0, k0 + kc) of columns [n0, n0 + nc) as fp32 micro-panels of nr columns:
  // panels[(j / nr) * kc * nr + p * nr + j % nr] = B(k0 + p, n0 + j), for j in [0, round_up(nc,
  // nr)); columns from nc on are written as 0. Called by several threads at once.
  virtual void pack(int64_t k0, int64_t kc, int64_t n0, int64_t nc, int64_t nr,
                    float* panels) const = 0;
};

}  // namespace xgemm::cpu
