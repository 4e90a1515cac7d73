// CUDA blocks on the CPU. Every thread of a cluster is a fiber; all of them share one thread of the
// operating system and give way only where they wait. README.md says what that finds, and what not.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace xgemm::emulator {

inline constexpr int kWarp = 32, kWarpgroup = 128;
inline constexpr uint32_t kWindowBytes = 1 << 18;  // of a block's shared memory: its addresses

// What the hardware leaves open.
struct Options {
  // Asynchronous copies, and products of a warpgroup, take effect as late as they may; else at
  // once.
  bool late_copies = false, late_products = false;
  uint32_t seed = 0;  // of the order in which threads run; 0: ascending
};
extern Options options;

// What a kernel did wrong; the launch throws it.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
[[noreturn]] void fail(const std::string& what);  // by the current thread

// Why a thread does not go on.
class Wait {
 public:
  virtual bool over() const = 0;
  virtual std::string what() const = 0;

 protected:
  ~Wait() = default;
};
void wait(const Wait& reason);

template <typename Over, typename What>
void wait_until(Over over, What what) {
  struct Reason final : Wait {
    Reason(Over& o, What& w) : over_(o), what_(w) {}
    bool over() const override { return over_(); }
    std::string what() const override { return what_(); }
    Over& over_;
    What& what_;
  };
  if (!over()) wait(Reason(over, what));
}

// Threads that execute one instruction together: each brings its operands, and the last one
// computes for all.
class Meeting {
 public:
  // compute(operands): those of all members, by their number.
  template <typename Operands, typename Compute>
  void meet(const char* what, int member, int members, Operands* mine, Compute compute) {
    if (arrived_ > 0 && what != what_) {
      fail(std::string(what) + ", while others of its warp or warpgroup are at " + what_);
    }
    what_ = what;
    operands_[member] = mine;
    if (++arrived_ == members) {
      compute(reinterpret_cast<Operands**>(operands_));
      arrived_ = 0, ++turn_;
      return;
    }
    const uint64_t turn = turn_;
    wait_until([&] { return turn_ != turn; },
               [&] {
                 return std::string(what) + ", with " + std::to_string(arrived_) + " of " +
                        std::to_string(members) + " threads";
               });
  }

 private:
  const char* what_ = "";
  int arrived_ = 0;
  uint64_t turn_ = 0;
  void* operands_[kWarpgroup];
};

// A thread's asynchronous operations (with a member run()) in groups that it commits and waits for.
template <typename Operation>
class AsyncGroups {
 public:
  void add(Operation operation) {
    if (!options.late_copies) operation.run();
    open_.push_back(std::move(operation));
  }
  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }
  void wait(size_t pending) {  // for all groups but the last ones
    while (groups_.size() > pending) {
      for (Operation& operation : groups_.front()) {
        if (options.late_copies) operation.run();
      }
      groups_.erase(groups_.begin());
    }
  }
  bool pending() const {
    bool any = !open_.empty();
    for (const auto& group : groups_) any |= !group.empty();
    return any;
  }

 private:
  std::vector<std::vector<Operation>> groups_;
  std::vector<Operation> open_;
};

// Bytes on their way to shared memory; what is not `valid` of them becomes 0.
struct SmallCopy {
  void* to;
  const void* from;
  int bytes, valid;
  void run();
};
struct BulkStore {
  std::function<void()> run;
};
struct Products;  // wgmma.cpp: a thread's part of its warpgroup's products under way

struct Block;

struct Thread {
  Block* block = nullptr;
  int linear = 0;
  uint3 index{};
  void* stack_pointer = nullptr;
  const Wait* waits = nullptr;
  bool done = false;
  uint64_t cluster_turn = 0;  // of its last barrier.cluster.arrive
  AsyncGroups<SmallCopy> copies;
  AsyncGroups<BulkStore> stores;
  std::shared_ptr<Products> products;

  int lane() const { return linear % kWarp; }
};

struct NamedBarrier {
  int arrived = 0, expected = 0;
  uint64_t turn = 0;
};

struct Cluster;

struct Block {
  Cluster* cluster = nullptr;
  unsigned rank = 0;
  uint3 index{};
  std::vector<Thread> threads;
  int live = 0;
  uint8_t* window = nullptr;  // shared memory, from address 0
  uint32_t dynamic_bytes = 0, static_end = 0;
  std::map<const void*, uint32_t> statics;
  NamedBarrier barriers[16];
  std::vector<std::map<uint32_t, Meeting>> warps;  // by the mask of those who meet
  std::vector<Meeting> warpgroups;

  bool holds(const void* pointer) const {
    const auto* p = static_cast<const uint8_t*>(pointer);
    return p >= window && p < window + kWindowBytes;
  }
};

struct Cluster {
  dim3 shape;
  std::vector<Block> blocks;
  int live = 0, arrived = 0;
  uint64_t turn = 0;
  std::deque<std::function<void()>> copies;  // bulk loads under way, where options.late_copies
};

struct GridShape {
  dim3 blocks, threads, cluster;
  uint32_t shared_bytes = 0;
};
void run_grid(const GridShape& shape, const std::function<void()>& kernel);

Thread& current();  // the thread that runs

// Executes an instruction of the warp together with the lanes in `mask`.
template <typename Operands, typename Compute>
void meet_warp(const char* what, uint32_t mask, Operands* mine, Compute compute) {
  Thread& thread = current();
  if ((mask >> thread.lane() & 1) == 0) fail(std::string(what) + ": the lane is not in its mask");
  thread.block->warps[thread.linear / kWarp][mask].meet(what, thread.lane(),
                                                        __builtin_popcount(mask), mine, compute);
}

// Shared memory. An address is an offset into the block's own memory, or into that of block
// `rank` of the cluster where rank + 1 stands in its upper 8 bits.
uint32_t shared_address(const void* pointer);
void* shared_pointer(uint32_t address);
void* shared_pointer_in(const void* pointer, unsigned rank);  // the same place in another block
uint8_t* dynamic_memory();
void* static_memory(const void* key, size_t bytes, size_t alignment);

// Barriers.
void sync_threads();
void sync_named(int id, int threads);
void arrive_named(int id, int threads);
void cluster_arrive();
void cluster_wait();
void mbarrier_init(uint64_t* barrier, uint32_t arrivals);
void mbarrier_arrive(uint64_t* barrier, uint32_t bytes = 0);  // which it then also waits for
void mbarrier_complete(uint64_t* barrier, uint32_t bytes);
bool mbarrier_test(const uint64_t* barrier, uint32_t parity);
void mbarrier_wait(uint64_t* barrier, uint32_t parity);

// Does a bulk copy to shared memory now, or later.
void start_copy(std::function<void()> copy);

// Memory of ones between two pages that nobody may touch. It ends less than `alignment` bytes
// before the second one, since no kernel may count on more; or begins where the first one ends. A
// launch throws where the rest of its pages was written. Beyond 64 MB it is zeros that take no room
// until they are written: for elements that lie far apart.
void* allocate_guarded(size_t bytes, size_t alignment = 16, bool at_front = false);
void make_read_only(void* memory);
void free_guarded(void* memory);

// What a launch gets besides its operands.
class Workspace {
 public:
  explicit Workspace(int64_t bytes) : data_(allocate_guarded(static_cast<size_t>(bytes), 256)) {}
  ~Workspace() { free_guarded(data_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* get() const { return data_; }

 private:
  void* data_;
};

}  // namespace xgemm::emulator
