// Threads come in from above: a kernel gets a Parallel and starts none of its own.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

namespace xgemm {

// A view of a callable `void(int64_t)`: no allocation, no ownership; it must outlive the call it is
// passed to.
class TaskRef {
 public:
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, TaskRef>>>
  TaskRef(F&& task)  // NOLINT: implicit, as std::function is
      : object_(const_cast<void*>(static_cast<const void*>(&task))),
        call_([](void* object, int64_t index) {
          (*static_cast<std::remove_reference_t<F>*>(object))(index);
        }) {}
  void operator()(int64_t index) const { call_(object_, index); }

 private:
  void* object_;
  void (*call_)(void*, int64_t);
};

// How many threads may run, and the way to run on them.
class Parallel {
 public:
  explicit Parallel(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {}
  virtual ~Parallel() = default;
  int num_threads() const { return num_threads_; }

  // Runs task(0) ... task(tasks - 1), each once, in any order, on up to num_threads() threads, and
  // returns when all are done. The tasks may all run on one thread (a nested call does), so a task
  // must never wait for another. An exception from a task is rethrown here.
  virtual void for_each(int64_t tasks, TaskRef task) const {
    for (int64_t i = 0; i < tasks; ++i) task(i);
  }

 private:
  int num_threads_;
};

// The i-th of `parts` nearly equal pieces of [0, total), cut at multiples of `grain`.
struct Range {
  int64_t begin, end;
};
inline Range split_range(int64_t total, int64_t parts, int64_t i, int64_t grain = 1) {
  const int64_t units = (total + grain - 1) / grain;
  const int64_t base = units / parts, extra = units % parts;
  const int64_t first = i * base + (i < extra ? i : extra);
  const int64_t last = first + base + (i < extra ? 1 : 0);
  const auto clip = [&](int64_t u) { return u * grain < total ? u * grain : total; };
  return {clip(first), clip(last)};
}

}  // namespace xgemm
