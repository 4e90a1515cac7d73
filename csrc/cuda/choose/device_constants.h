// What a GPU takes for plain things, which the models of all kernels share.
#pragma once

#include <cmath>
#include <cstddef>
#include <iterator>

namespace xgemm::cuda::choose {

struct DeviceConstants {
  // By these it is known again, and those of an unknown GPU are derived (device.h).
  int sm_count, clock_khz, memory_clock_khz, memory_bus_bits;

  struct Read {
    double megabytes, us;
  };
  Read reads[11];              // from a cold L2, the launch included, rising
  double mma_cycles_per_us;    // the clock that a GPU holds while its tensor cores are busy
  double fma_cycles_per_us;    // and while its FMA units are
  double mma_flops_per_cycle;  // fp16 and bf16, of an SM

  // Rates over those of the GPU to which the constants of kernels' own are fitted.
  double dram_speed = 1, l2_speed = 1;
  double clock_speed = 1, all_sms_speed = 1;  // of one SM; of them all
  double mma_sync_speed = 1;                  // products of an SM by mma.sync

  // Straight lines between the points in the logarithms; not less than the first.
  double cold_read_us(double megabytes) const {
    if (megabytes <= reads[0].megabytes) return reads[0].us;
    size_t i = 1;
    while (i + 1 < std::size(reads) && megabytes > reads[i].megabytes) ++i;
    const Read low = reads[i - 1], high = reads[i];
    const double share =
        std::log(megabytes / low.megabytes) / std::log(high.megabytes / low.megabytes);
    return low.us * std::pow(high.us / low.us, share);
  }
};

}  // namespace xgemm::cuda::choose
