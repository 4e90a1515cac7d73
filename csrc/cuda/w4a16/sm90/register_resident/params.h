// What the host tells the kernel for small weights.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/activation.h"
#include "common/status.h"
#include "cuda/w4a16/sm90/register_resident/plan.h"

namespace xgemm::cuda::w4a16::sm90::register_resident {

struct Params {
  // First what the first loads need: a CTA starts with an empty cache of constants.
  const uint8_t* weight;
  uint32_t row_bytes;      // of qweight, which has less than 2^32 of them
  uint32_t strips, units;  // of all of it
  bool bf16_scales;        // else fp16, as always with fp16 activations

  const uint16_t* x;  // [k], aligned to 16 bytes
  int k;
  int sums;

  uint16_t* d;  // [n], stride in elements
  int64_t d_stride;
  const uint16_t* bias;  // or null
  int64_t bias_stride;
  int n;
  Activation activation;
};

Status launch_f16(const Params& params, const Plan& plan, cudaStream_t stream);
Status launch_bf16(const Params& params, const Plan& plan, cudaStream_t stream);

}  // namespace xgemm::cuda::w4a16::sm90::register_resident
