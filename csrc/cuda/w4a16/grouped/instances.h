// The compiled kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/activation.h"
#include "common/status.h"
#include "cuda/w4a16/grouped/api.h"
#include "cuda/w4a16/grouped/params.h"

namespace xgemm::cuda::w4a16::grouped {

// to[s] = the row of slot s of an expert, its channels in the expert's order, then zeros.
struct CopyRows {
  int experts, slots, row_divisor;
  int64_t k;
  const int32_t* sorted;
  const int32_t* perm;  // [experts, k] or null
  const void* x;        // 2 bytes an element
  int64_t x_row_stride;
  void* to;  // [slots, to_row_stride]
  int64_t to_row_stride;
};

// y[s, j] = activation(x[s, j]) x[s, columns + j], fp16 or bf16.
struct Gate {
  int64_t slots, columns;
  DType dtype;
  Activation activation;
  const void* x;
  void* y;
};

Status launch_f16(const Params& params, const Instance& instance, cudaStream_t stream);
Status launch_bf16(const Params& params, const Instance& instance, cudaStream_t stream);
Status launch_fp4_f16(const Params& params, const Instance& instance, cudaStream_t stream);
Status launch_fp4_bf16(const Params& params, const Instance& instance, cudaStream_t stream);
Status copy_rows(const CopyRows& copy, cudaStream_t stream);
Status gate(const Gate& gate, cudaStream_t stream);
Status combine(const Combine& combine, cudaStream_t stream);
Status sort(const Sort& sort, cudaStream_t stream);

namespace sm90 {
Status launch_f16(const Params& params, const Instance& instance, cudaStream_t stream);
Status launch_bf16(const Params& params, const Instance& instance, cudaStream_t stream);
Status launch_fp4_f16(const Params& params, const Instance& instance, cudaStream_t stream);
Status launch_fp4_bf16(const Params& params, const Instance& instance, cudaStream_t stream);
Status launch_wgmma_f16(const Params& params, const Persistent& instance, cudaStream_t stream);
Status launch_wgmma_bf16(const Params& params, const Persistent& instance, cudaStream_t stream);
Status copy_rows(const CopyRows& copy, cudaStream_t stream);
Status gate(const Gate& gate, cudaStream_t stream);
Status combine(const Combine& combine, cudaStream_t stream);
Status sort(const Sort& sort, cudaStream_t stream);
}  // namespace sm90

// fp32, tiles of 8 rows by 64 columns of y.
Status launch_f32(const Params& params, const w4::Layout& layout, bool fp4, int64_t tiles,
                  cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::grouped
