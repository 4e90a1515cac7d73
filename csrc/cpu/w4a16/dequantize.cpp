// Packed weights as a dense matrix.
#include <algorithm>
#include <cstring>

#include "cpu/isa/convert.h"
#include "cpu/isa/isa.h"
#include "cpu/w4a16/api.h"
#include "cpu/w4a16/dequant.h"

namespace xgemm::cpu {

void w4_dequantize(const W4Weight& weight, DType dtype, void* out, const Parallel& parallel) {
  using w4a16::kColumns;
  using w4a16::kHalfK;
  const int64_t n = weight.layout.n, k = weight.layout.k, item = element_size(dtype);
  const auto dequant = isa() != Isa::kGeneric ? w4a16::dequant_half_transposed_avx2
                                              : w4a16::dequant_half_transposed_generic;
  parallel.for_each(ceil_div(n, kColumns), [&](int64_t strip) {
    const int64_t column = strip * kColumns, columns = std::min(kColumns, n - column);
    for (int64_t channel = 0; channel < k; channel += kHalfK) {
      alignas(64) float tile[kColumns * kHalfK];  // [column][channel]
      float* const parts[4] = {tile, tile + 16, tile + 32, tile + 48};
      dequant(weight, column, channel, parts, kHalfK);
      const int64_t channels = std::min(kHalfK, k - channel);
      for (int64_t c = 0; c < columns; ++c) {
        const float* from = tile + c * kHalfK;
        char* to = static_cast<char*>(out) + ((column + c) * k + channel) * item;
        if (dtype == DType::kF32) {
          std::memcpy(to, from, static_cast<size_t>(channels) * sizeof(float));
          continue;
        }
        for (int64_t i = 0; i < channels; ++i) store_float(to + i * item, dtype, from[i]);
      }
    }
  });
}

}  // namespace xgemm::cpu
