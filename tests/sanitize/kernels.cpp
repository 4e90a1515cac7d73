// Random calls of csrc/cpu, without torch, on threads of std::thread: `kernels SECONDS SEED
// [CASE]`, or `kernels mistake NAME`. run.py builds it for AddressSanitizer and UBSan, and for
// ThreadSanitizer.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "cpu/isa/isa.h"
#include "sanitize/cases.h"

namespace xgemm::sanitize {
namespace {

// New threads for each region; a region within a task runs on its thread, as torch does it.
class StdThreads final : public Parallel {
 public:
  using Parallel::Parallel;

  void for_each(int64_t tasks, TaskRef task) const override {
    static thread_local bool inside = false;
    if (inside || num_threads() == 1 || tasks <= 1) return Parallel::for_each(tasks, task);
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
    const auto work = [&] {
      inside = true;
      try {
        for (int64_t i; (i = next++) < tasks;) task(i);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
      inside = false;
    };
    std::vector<std::thread> others;
    for (int64_t i = 1; i < num_threads() && i < tasks; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
    if (error) std::rethrow_exception(error);
  }
};

void one_case(uint64_t seed, uint64_t index) {
  std::seed_seq sequence{seed, index};
  Rng rng(sequence);
  const StdThreads parallel(pick(rng, {1, 2, 3, 4, 8}));
  std::printf("case %llu: ", static_cast<unsigned long long>(index));
  switch (draw(rng, 0, 2)) {
    case 0:
      return product_case(rng, parallel);
    case 1:
      return w4_case(rng, parallel);
    default:
      return reduction_case(rng, parallel);
  }
}

}  // namespace
}  // namespace xgemm::sanitize

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s SECONDS SEED [CASE] | mistake NAME\n", argv[0]);
    return 2;
  }
  if (std::strcmp(argv[1], "mistake") == 0) {
    return xgemm::sanitize::make_mistake(argv[2]) ? 0 : 2;
  }
  const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  if (argc > 3) {
    xgemm::sanitize::one_case(seed, std::strtoull(argv[3], nullptr, 10));
    return 0;
  }
  const auto started = Clock::now();
  const std::chrono::duration<double> limit(std::atof(argv[1]));
  uint64_t done = 0;
  for (; Clock::now() - started < limit; ++done) xgemm::sanitize::one_case(seed, done);
  std::printf("%llu cases by %s kernels, seed %llu\n", static_cast<unsigned long long>(done),
              xgemm::cpu::name_of(xgemm::cpu::isa()), static_cast<unsigned long long>(seed));
  return 0;
}
