// Sums of x over a unit of K, by warps of their own: what a constant zero point takes away is the
// same for all columns, so that nothing need be subtracted from the codes.
#pragma once

#include "cuda/ptx/group_arrive.h"
#include "cuda/ptx/mma_sm80.h"
#include "cuda/w4a16/sm90/wgmma/few_dequant.cuh"
#include "cuda/w4a16/sm90/wgmma/schedule.cuh"

namespace xgemm::cuda::w4a16::sm90::wgmma {

// What the sums of a unit begin with, in wgmma's layout: rows 8 j + 2 t and the next of columns
// gid, then of columns gid + 8.
template <int kRows>
struct XSums {
  float4 begin[kRows / 8][4];
  uint32_t infinite, unused[3];  // or no number: some sum
};

// By one warp, for 16 rows. (For more it is too slow: each of its products waits for all of the
// warpgroups' that are under way.)
template <typename T, typename Config, typename Storage>
class FewSums {
  static_assert(std::is_same_v<T, __nv_bfloat16>, "RawCodes");
  static_assert(Config::kRows == 16, "one operand of the tensor cores");

 public:
  __device__ FewSums(const Params& params, Storage& smem, Place place, int lane)
      : smem_(smem),
        units_(static_cast<int>(Scheduler(params, place, Config::kRows).units())),
        lane_(lane) {
    // Rows that are odd take the other 64 bytes first: no bank conflicts.
    const int gid = lane / 4, t = lane % 4;
    const int chunk = (t | (gid & 1) << 2) ^ gid;
    x_ = gid * 128 + chunk * 16;
    // Lane t stores row gid (+ 8 where t > 1) for columns gid (+ 8 where t is odd).
    to_ = (t / 2 * 4 + gid / 2) * 4 + t % 2 * 2 + gid % 2;
  }

  __device__ void run() {
    RingState<Config::kWStages> ring;
#pragma unroll 1
    for (; units_ > 0; --units_) {
      ptx::mbarrier_wait(&smem_.w_full[ring.stage], ring.parity);
      add_up(ring.stage);
      __syncwarp();
      if (ptx::kAllArrive || lane_ == 0) ptx::mbarrier_arrive(&smem_.sums_full[ring.stage]);
      ring.advance();
    }
  }

 private:
  // The tensor cores multiply x by ones. Which k lies where does not matter then, so that a lane's
  // 16 bytes are the operand of a row's sums, which are two of the product.
  __device__ void add_up(int stage) {
    constexpr uint32_t kOnes = 0x3f803f80;
    float sums[2][4] = {};
    const uint8_t* x = smem_.x[stage][0];
#pragma unroll
    for (int half = 0; half < 2; ++half, x += Config::kXBytes) {
      uint4 a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = *reinterpret_cast<const uint4*>(x + (x_ ^ i / 2 * 64) + i % 2 * 1024);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::mma_m16n8k16<T>(sums[i % 2], {a[i].x, a[i].y, a[i].z, a[i].w}, kOnes, kOnes);
      }
    }
    const int t = lane_ % 4;
    const float sum = t < 2 ? sums[0][0] + sums[0][2] : sums[1][0] + sums[1][2];
    const float begin = -RawCodes::kCenter * sum;
    reinterpret_cast<float*>(smem_.x_sums[stage].begin)[to_] = begin;
    const bool finite = __all_sync(~0u, fabsf(sum) < __int_as_float(0x7f800000));
    if (lane_ == 0) smem_.x_sums[stage].infinite = !finite;
  }

  Storage& smem_;
  int units_, lane_;
  int x_, to_;  // a lane's bytes within 8 rows of X; its float within 16 rows of XSums
};

}  // namespace xgemm::cuda::w4a16::sm90::wgmma
