// The threads of torch, as kernels see them.
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <atomic>
#include <cstdint>
#include <exception>

#include "common/parallel.h"

namespace xgemm::ops {

// As many threads as torch.set_num_threads says, borrowed from torch's own pool.
class TorchParallel final : public Parallel {
 public:
  TorchParallel() : Parallel(torch_threads()) {}

  void for_each(int64_t tasks, TaskRef task) const override {
    if (tasks <= 1 || num_threads() == 1) {
      for (int64_t i = 0; i < tasks; ++i) task(i);
      return;
    }
    Region region{task};
    TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, tasks, 1, &Region::run, &region));
    if (region.error) std::rethrow_exception(region.error);
  }

 private:
  // An exception that left the callback would come back as an error code without its text.
  struct Region {
    TaskRef task;
    std::atomic<bool> failed{false};
    std::exception_ptr error{};

    static void run(int64_t begin, int64_t end, void* context) {
      auto& region = *static_cast<Region*>(context);
      try {
        for (int64_t i = begin; i < end; ++i) region.task(i);
      } catch (...) {
        if (!region.failed.exchange(true)) region.error = std::current_exception();
      }
    }
  };

  static int torch_threads() {
    uint32_t threads = 1;
    TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
    return static_cast<int>(threads);
  }
};

}  // namespace xgemm::ops
