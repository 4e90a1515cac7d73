// 4-bit weights times 16- or 32-bit activations on the CPU, over the packed layout.
#pragma once

#include <cstdint>
#include <string>

#include "common/activation.h"
#include "common/dtype.h"
#include "common/parallel.h"
#include "cpu/panel_source.h"
#include "w4/packed_layout.h"

namespace xgemm::cpu {

// A packed weight [n, k]: its bytes and the layout that says what they mean.
struct W4Weight {
  const uint8_t* data = nullptr;
  w4::Layout layout{};
  bool bf16_scales = false;  // scales are bf16, else fp16; zeros are always fp16
  bool fp4 = false;          // codes are E2M1 floats, without zeros: what makes floats of them
                             // knows it, the streaming kernel does not
};

// Y[m, n] = activation(X[m, k] W^T + bias[n]), fp32 accumulation, rounded once to Y's type.
struct W4Problem {
  int64_t m = 0;
  W4Weight weight;
  const void* x = nullptr;                     // [m, k] fp32, fp16 or bf16
  DType dtype = DType::kF32;                   // of x, y and bias
  int64_t x_row_stride = 0, x_col_stride = 1;  // elements
  const int32_t* perm = nullptr;  // [k] or null: channel j of W multiplies x[:, perm[j]]
  const void* bias = nullptr;     // [n] or null
  int64_t bias_stride = 1;
  Activation activation = Activation::kNone;
  void* y = nullptr;                           // [m, n]
  int64_t y_row_stride = 0, y_col_stride = 1;  // elements
  bool batch_invariant = false;                // a row's bits do not depend on m
};

// True where the streaming kernel below is the right one for m rows; else build a W4Panels and give
// it to cpu::gemm as b_source (ops/ does that: families do not include each other).
bool w4a16_streams(const W4Problem& problem);
// Few rows: reads every packed byte once, dequantizes in registers.
void w4a16_stream(const W4Problem& problem, const Parallel& parallel);
std::string explain_w4a16(const W4Problem& problem, int num_threads);
// The same as a JSON object.
std::string explain_w4a16_json(const W4Problem& problem, int num_threads);

// W^T [k, n] as the B operand of the blocked driver (forward: X W^T), dequantized in the packing.
class W4Panels final : public PanelSource {
 public:
  explicit W4Panels(const W4Weight& weight) : weight_(weight) {}
  void pack(int64_t k0, int64_t kc, int64_t n0, int64_t nc, int64_t nr,
            float* panels) const override;

 private:
  W4Weight weight_;
};

// W [n, k] as the B operand (backward: dX = dY W): "k0" counts output columns, "n0" input channels.
class W4PanelsTransposed final : public PanelSource {
 public:
  explicit W4PanelsTransposed(const W4Weight& weight) : weight_(weight) {}
  void pack(int64_t k0, int64_t kc, int64_t n0, int64_t nc, int64_t nr,
            float* panels) const override;

 private:
  W4Weight weight_;
};

// out[n, k] contiguous = W, each weight rounded once to `dtype` (fp32, fp16 or bf16).
void w4_dequantize(const W4Weight& weight, DType dtype, void* out, const Parallel& parallel);

// codes uint8 [n, k] (each in 0..15), scales [groups, n] (2 bytes each), zeros fp16 [groups, n] or
// null, all contiguous <-> packed bytes. pack writes every byte of `packed`, padding included.
void w4_pack(const w4::Layout& layout, const uint8_t* codes, const uint16_t* scales,
             const uint16_t* zeros, uint8_t* packed, const Parallel& parallel);
void w4_unpack(const w4::Layout& layout, const uint8_t* packed, uint8_t* codes, uint16_t* scales,
               uint16_t* zeros, const Parallel& parallel);

}  // namespace xgemm::cpu
