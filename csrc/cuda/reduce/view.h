// A reduction in the terms of the choice of its kernel.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

#include "common/device.h"
#include "common/math.h"
#include "cuda/choose/constants_of.h"
#include "cuda/reduce/problem.h"

namespace xgemm::cuda::reduce {

inline constexpr int64_t k31Bits = int64_t{1} << 31;
inline constexpr int64_t kMaxOfThread = 4096;  // elements of an output, where one thread has all
inline constexpr int64_t kSharedBytes = 48 * 1024;
inline constexpr int kMinThreads = 64, kMaxThreads = 512;
inline constexpr int64_t kMaxMail = 16384;                         // slots that one block reads
inline constexpr int kMinOfCollector = 8;                          // outputs
inline constexpr int kMaxCollectors = 32, kMaxCollectorsOfSm = 2;  // of a tile; of all tiles
// From here on L2 is better left as it is: reading 1 GB takes 243 us then, and 256 us where what
// was read is dropped first. That wins below, where other data that L2 holds stay there: 64 MB take
// 22.8 us instead of 25.
inline constexpr double kStreamedBytes = 275e6;

inline int64_t pow2_ceil(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}
inline int log2_of(int64_t pow2) { return std::bit_width(static_cast<uint64_t>(pow2)) - 1; }

struct View {
  const ReduceProblem& problem;
  const Plan& plan;
  const DeviceInfo& device;
  bool groups = false;  // of columns, which a second launch brings together
  const choose::DeviceConstants& gpu = choose::constants_of(device);
  Kind kind = kind_of(problem);
  int64_t element = element_size(problem.in_dtype);
  int64_t vector = 16 / element;  // elements
  int batch = in_flight(Kernel::kRows, kind, problem.in_dtype);
  double bytes = static_cast<double>(plan.outputs) * static_cast<double>(plan.extent * element);
  int64_t result = element_size(reduce_output_dtype(problem.op, problem.in_dtype));  // bytes
  double megabytes = (bytes + static_cast<double>(plan.outputs * result)) * 1e-6;

  const ReduceDim& kept() const { return plan.kept.innermost(); }
  const ReduceDim& reduced() const { return plan.reduced.innermost(); }
  bool four_byte_lanes() const { return reduce::four_byte_lanes(kind, problem.in_dtype); }
  // The kernels of small problems read as if nothing else should stay in L2, and know one dimension
  // of each kind.
  bool small() const {
    return has_small(kind, problem.in_dtype) && plan.kept.count == 1 && plan.reduced.count == 1;
  }
  bool few_kernels() const { return reduce::few_kernels(kind, problem.in_dtype); }
  bool clusters() const { return device.capability == 90; }

  // 16 bytes of them would be mostly of other rows.
  bool few_columns() const { return 2 * kept().size <= vector; }
  // Base and all strides but those of the innermost kept (columns) or reduced (rows) dimension are
  // multiples of 16 bytes.
  bool all_aligned(bool columns) const {
    if (reinterpret_cast<uintptr_t>(problem.in) % 16 != 0) return false;
    const ReduceDims &a = plan.kept, &b = plan.reduced;
    for (int d = 0; d < a.count - (columns ? 1 : 0); ++d) {
      if (a[d].size > 1 && a[d].in_stride % vector != 0) return false;
    }
    for (int d = 0; d < b.count - (columns ? 0 : 1); ++d) {
      if (b[d].size > 1 && b[d].in_stride % vector != 0) return false;
    }
    return true;
  }
  // Loads of a run at the worst alignment, where runs are not all aligned.
  int64_t vectors_of_run() const {
    const int64_t before = all_aligned(false) ? 0 : vector - 1;
    return ceil_div(reduced().size + before, vector);
  }
  int64_t vectors_of_row() const { return plan.extent / reduced().size * vectors_of_run(); }
};

}  // namespace xgemm::cuda::reduce
