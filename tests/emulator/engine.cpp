#include "emulator/engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <random>

#include "emulator/block_order.h"

// Those of the thread that runs.
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace xgemm::emulator {

Options options;
bool descending_blocks = false;

namespace {

constexpr size_t kStackBytes = 256 << 10, kPage = 4096;
// Where dynamic shared memory begins: what the hardware reserves, and no better alignment than the
// 128 bytes that a kernel may count on. Behind it lies a guard.
constexpr uint32_t kDynamicBegin = 1024 + 128, kGuard = 1024;
constexpr uint8_t kPoison = 0xff;  // NaN in every floating-point type
constexpr size_t kMaxFilled = 64 << 20;

// Saves what a function must keep, and its stack; goes on where `to` was left.
extern "C" void xgemm_emulator_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.type xgemm_emulator_switch, @function
xgemm_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size xgemm_emulator_switch, .-xgemm_emulator_switch
)");

// The launch under way.
struct Run {
  const std::function<void()>* kernel = nullptr;
  Thread* thread = nullptr;
  void* scheduler = nullptr;  // its stack pointer
  std::string failure;
  sigjmp_buf on_fault;
} run;

std::string text_of(const uint3& index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

// Stacks, each with a page below that nobody may touch. They are kept for the next launch.
uint8_t* stack(size_t number) {
  static std::vector<uint8_t*> stacks;
  while (stacks.size() <= number) {
    void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory, kPage, PROT_NONE);
    stacks.push_back(static_cast<uint8_t*>(memory));
  }
  return stacks[number];
}

uint8_t* window(size_t number) {
  static std::vector<std::unique_ptr<uint8_t[]>> windows;
  while (windows.size() <= number) {
    windows.push_back(std::make_unique<uint8_t[]>(kWindowBytes + 1024));
  }
  return windows[number].get() + (1024 - reinterpret_cast<uintptr_t>(windows[number].get()) % 1024);
}

void give_way() { xgemm_emulator_switch(&run.thread->stack_pointer, run.scheduler); }

// Those who wait for all threads wait no longer for one that has gone.
void leave(Thread& thread) {
  if (thread.copies.pending()) fail("exits with cp.async under way");
  if (thread.stores.pending()) {
    fail("exits without having waited until its bulk stores have read shared memory");
  }
  Block& block = *thread.block;
  NamedBarrier& barrier = block.barriers[0];
  if (--block.live > 0 && barrier.expected == 0 && barrier.arrived == block.live) {
    barrier.arrived = 0, ++barrier.turn;
  }
  Cluster& cluster = *block.cluster;
  if (--cluster.live > 0 && cluster.arrived == cluster.live) cluster.arrived = 0, ++cluster.turn;
}

void thread_main() {
  try {
    (*run.kernel)();
    leave(*run.thread);
  } catch (const std::exception& error) {
    run.failure = error.what();
  }
  run.thread->done = true;
  give_way();
  __builtin_unreachable();
}

void prepare(Thread& thread, size_t number) {
  // As if the thread had been left at the start of thread_main: six registers, then where to go.
  auto* top = reinterpret_cast<void**>(stack(number) + kStackBytes);
  *--top = nullptr;  // where it would return to: nowhere
  *--top = reinterpret_cast<void*>(&thread_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  thread.stack_pointer = top;
}

void resume(Thread& thread) {
  run.thread = &thread;
  thread.waits = nullptr;
  threadIdx = thread.index, blockIdx = thread.block->index;
  xgemm_emulator_switch(&run.scheduler, thread.stack_pointer);
  run.thread = nullptr;
  if (!run.failure.empty()) throw Failure(run.failure);
}

std::string describe_deadlock(const std::vector<Thread*>& threads) {
  std::map<std::string, std::string> by_reason;
  for (const Thread* thread : threads) {
    if (thread->done) continue;
    std::string& who = by_reason["block " + text_of(thread->block->index) + " at " +
                                 thread->waits->what() + ": threads"];
    if (who.size() < 100) who += " " + std::to_string(thread->linear);
  }
  std::string text = "deadlock";
  for (const auto& [reason, who] : by_reason) text += "\n  " + reason + who;
  return text;
}

void make_block(Block& block, Cluster& cluster, const GridShape& shape, unsigned rank) {
  const dim3& n = shape.threads;
  const size_t count = size_t{n.x} * n.y * n.z;
  block.cluster = &cluster;
  block.rank = rank;
  block.threads.resize(count);
  block.live = static_cast<int>(count);
  block.window = window(rank);
  block.dynamic_bytes = shape.shared_bytes;
  block.static_end = kDynamicBegin + shape.shared_bytes + kGuard;
  std::memset(block.window, kPoison, block.static_end);
  block.warps.resize((count + kWarp - 1) / kWarp);
  block.warpgroups.resize((count + kWarpgroup - 1) / kWarpgroup);
  for (size_t i = 0; i < count; ++i) {
    Thread& thread = block.threads[i];
    const auto at = static_cast<unsigned>(i);
    thread.block = &block;
    thread.linear = static_cast<int>(i);
    thread.index = {at % n.x, at / n.x % n.y, at / n.x / n.y};
    prepare(thread, rank * count + i);
  }
}

void check_guards(const Block& block) {
  std::vector<std::pair<uint32_t, uint32_t>> guards = {
      {0, kDynamicBegin},
      {kDynamicBegin + block.dynamic_bytes, kDynamicBegin + block.dynamic_bytes + kGuard}};
  for (const auto& [begin, end] : guards) {
    const auto* touched = std::find_if(block.window + begin, block.window + end,
                                       [](uint8_t byte) { return byte != kPoison; });
    if (touched == block.window + end) continue;
    throw Failure("block " + text_of(block.index) + " wrote outside of its shared memory: " +
                  std::to_string(touched - block.window - kDynamicBegin) +
                  " bytes from the begin of the " + std::to_string(block.dynamic_bytes) +
                  " that it asked for");
  }
}

void run_cluster(Cluster& cluster) {
  std::vector<Thread*> threads;
  for (Block& block : cluster.blocks) {
    cluster.live += block.live;
    for (Thread& thread : block.threads) threads.push_back(&thread);
  }
  std::minstd_rand random(options.seed);
  // With a seed there is always one thread that runs only when no other can, so that what others do
  // without waiting for it is seen.
  Thread* slow = nullptr;
  const auto choose_slow = [&] {
    if (options.seed != 0) slow = threads[random() % threads.size()];
  };
  if (options.seed != 0) std::shuffle(threads.begin(), threads.end(), random);
  choose_slow();
  const auto can_run = [](const Thread& thread) {
    return !thread.done && (thread.waits == nullptr || thread.waits->over());
  };
  while (cluster.live > 0) {
    bool progress = false;
    for (Thread* thread : threads) {
      if (thread == slow || !can_run(*thread)) continue;
      resume(*thread);
      progress = true;
    }
    if (progress) continue;
    if (slow != nullptr && can_run(*slow)) {
      resume(*slow);
      choose_slow();
      continue;
    }
    choose_slow();
    if (cluster.copies.empty()) throw Failure(describe_deadlock(threads));
    // Some of the copies under way, as many turns of the loop take long.
    for (size_t some = 1 + cluster.copies.size() / 4; some > 0; --some) {
      if (options.seed != 0) {
        std::swap(cluster.copies.front(), cluster.copies[random() % cluster.copies.size()]);
      }
      cluster.copies.front()();
      cluster.copies.pop_front();
    }
  }
  if (!cluster.copies.empty()) throw Failure("a block exits with bulk loads under way");
  for (const Block& block : cluster.blocks) check_guards(block);
}

struct Allocation {
  uint8_t* pages;  // the first may not be touched, nor the last
  size_t pages_bytes, bytes;

  uint8_t* first() const { return pages + kPage; }
  uint8_t* last() const { return pages + pages_bytes - kPage; }
};
std::map<uint8_t*, Allocation>& allocations() {
  static std::map<uint8_t*, Allocation> all;
  return all;
}

// An address among the allocations: how far from the nearest one.
std::string describe_address(const void* fault) {
  char number[32];
  std::snprintf(number, sizeof number, "%p", fault);
  const auto* address = static_cast<const uint8_t*>(fault);
  std::string text;
  ptrdiff_t nearest = 1 << 20;
  for (const auto& [begin, allocation] : allocations()) {
    const uint8_t* end = begin + allocation.bytes;
    const ptrdiff_t distance = address < begin ? begin - address
                               : address < end ? -1
                                               : address - end;
    if (distance >= nearest) continue;
    nearest = distance;
    const std::string bytes = std::to_string(allocation.bytes) + " bytes of global memory";
    text = distance < 0 ? ", written in " + bytes + " that may only be read"
                        : ", " + std::to_string(distance) + " bytes " +
                              (address < begin ? "before " : "behind ") + bytes;
  }
  return std::string(" at ") + number + text;
}

// What a guard page cannot see: writes to the other bytes of an allocation's own pages.
void check_surroundings() {
  const auto written = [](uint8_t value) { return value != kPoison; };
  for (const auto& [begin, allocation] : allocations()) {
    uint8_t* const end = begin + allocation.bytes;
    const bool before = std::any_of(allocation.first(), begin, written);
    if (!before && std::none_of(end, allocation.last(), written)) continue;
    std::fill(allocation.first(), begin, kPoison);
    std::fill(end, allocation.last(), kPoison);
    throw Failure("written outside of " + std::to_string(allocation.bytes) +
                  " bytes of global memory: " + (before ? "before" : "behind") + " them");
  }
}

void on_fault(int signal, siginfo_t* info, void*) {
  const std::string what = signal == SIGILL
                               ? "a misaligned access, or one outside of an array"
                               : "an illegal address" + describe_address(info->si_addr);
  run.failure = (run.thread != nullptr ? "block " + text_of(run.thread->block->index) + " thread " +
                                             text_of(run.thread->index) + ": "
                                       : "a bulk copy: ") +
                what;
  siglongjmp(run.on_fault, 1);
}

// While kernels run, faults are theirs.
class FaultHandlers {
 public:
  FaultHandlers() {
    stack_t own{};
    own.ss_sp = stack_.get();
    own.ss_size = kBytes;
    sigaltstack(&own, &old_stack_);
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (size_t i = 0; i < 3; ++i) sigaction(kSignals[i], &action, &old_[i]);
  }
  ~FaultHandlers() {
    for (size_t i = 0; i < 3; ++i) sigaction(kSignals[i], &old_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
  }
  FaultHandlers(const FaultHandlers&) = delete;
  FaultHandlers& operator=(const FaultHandlers&) = delete;

 private:
  static constexpr int kSignals[3] = {SIGSEGV, SIGBUS, SIGILL};
  static constexpr size_t kBytes = 64 << 10;
  std::unique_ptr<uint8_t[]> stack_ = std::make_unique<uint8_t[]>(kBytes);
  stack_t old_stack_{};
  struct sigaction old_[3];
};

}  // namespace

Thread& current() {
  if (run.thread == nullptr) throw std::logic_error("device code was called by the host");
  return *run.thread;
}

void fail(const std::string& what) {
  if (run.thread == nullptr) throw Failure("a bulk copy: " + what);
  throw Failure("block " + text_of(run.thread->block->index) + " thread " +
                text_of(run.thread->index) + ": " + what);
}

void wait(const Wait& reason) {
  current().waits = &reason;
  give_way();
}

void run_grid(const GridShape& shape, const std::function<void()>& kernel) {
  if (run.thread != nullptr) throw std::logic_error("a kernel launches a kernel");
  const FaultHandlers handlers;
  run.kernel = &kernel;
  run.failure.clear();
  blockDim = shape.threads, gridDim = shape.blocks;
  if (sigsetjmp(run.on_fault, 1) != 0) {
    run.thread = nullptr;
    throw Failure(run.failure);
  }
  const dim3 &grid = shape.blocks, &size = shape.cluster;
  const dim3 clusters(grid.x / size.x, grid.y / size.y, grid.z / size.z);
  const unsigned count = clusters.x * clusters.y * clusters.z;
  for (unsigned turn = 0; turn < count; ++turn) {
    const unsigned i = descending_blocks ? count - 1 - turn : turn;
    const uint3 at = {i % clusters.x, i / clusters.x % clusters.y, i / clusters.x / clusters.y};
    Cluster cluster;
    cluster.shape = size;
    cluster.blocks.resize(size_t{size.x} * size.y * size.z);
    for (unsigned rank = 0; rank < cluster.blocks.size(); ++rank) {
      cluster.blocks[rank].index = {at.x * size.x + rank % size.x,
                                    at.y * size.y + rank / size.x % size.y,
                                    at.z * size.z + rank / size.x / size.y};
      make_block(cluster.blocks[rank], cluster, shape, rank);
    }
    run_cluster(cluster);
  }
  check_surroundings();
}

uint32_t shared_address(const void* pointer) {
  const Block& block = *current().block;
  if (!block.holds(pointer)) fail("a pointer that is not to the block's own shared memory");
  return static_cast<uint32_t>(static_cast<const uint8_t*>(pointer) - block.window);
}

namespace {

Block& block_of_rank(unsigned rank) {
  std::vector<Block>& blocks = current().block->cluster->blocks;
  if (rank >= blocks.size()) fail("no block " + std::to_string(rank) + " in the cluster");
  if (blocks[rank].live == 0) fail("shared memory of a block that has exited");
  return blocks[rank];
}

}  // namespace

void* shared_pointer(uint32_t address) {
  Block& block = address >> 24 == 0 ? *current().block : block_of_rank((address >> 24) - 1);
  const uint32_t offset = address & 0xffffff;
  if (offset >= kWindowBytes) fail("an address outside of shared memory");
  return block.window + offset;
}

void* shared_pointer_in(const void* pointer, unsigned rank) {
  return block_of_rank(rank).window + shared_address(pointer);
}

uint8_t* dynamic_memory() { return current().block->window + kDynamicBegin; }

void* static_memory(const void* key, size_t bytes, size_t alignment) {
  Block& block = *current().block;
  const auto [found, is_new] = block.statics.try_emplace(key, 0);
  if (is_new) {
    const auto align = static_cast<uint32_t>(alignment);
    found->second = (block.static_end + align - 1) / align * align;
    block.static_end = found->second + static_cast<uint32_t>(bytes);
    if (block.static_end > kWindowBytes) fail("more shared memory than a block has");
    std::memset(block.window + found->second, kPoison, bytes);
  }
  return block.window + found->second;
}

void SmallCopy::run() {
  std::memcpy(to, from, static_cast<size_t>(valid));
  std::memset(static_cast<uint8_t*>(to) + valid, 0, static_cast<size_t>(bytes - valid));
}

void start_copy(std::function<void()> copy) {
  if (options.late_copies) {
    current().block->cluster->copies.push_back(std::move(copy));
  } else {
    copy();
  }
}

void* allocate_guarded(size_t bytes, size_t alignment, bool at_front) {
  const size_t used = (bytes + alignment - 1) / alignment * alignment;
  const size_t inner = (used + kPage - 1) / kPage * kPage, all = inner + 2 * kPage;
  void* memory = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* pages = static_cast<uint8_t*>(memory);
  mprotect(pages + kPage, inner, PROT_READ | PROT_WRITE);
  uint8_t *first = pages + kPage, *begin = first + (at_front ? 0 : inner - used);
  if (bytes <= kMaxFilled) {
    std::memset(first, kPoison, inner);
  } else {
    std::memset(first, kPoison, static_cast<size_t>(begin - first));
    std::memset(begin + bytes, kPoison, inner - bytes - static_cast<size_t>(begin - first));
  }
  allocations()[begin] = {pages, all, bytes};
  return begin;
}

void make_read_only(void* memory) {
  const Allocation& found = allocations().at(static_cast<uint8_t*>(memory));
  mprotect(found.first(), static_cast<size_t>(found.last() - found.first()), PROT_READ);
}

void free_guarded(void* memory) {
  const auto found = allocations().find(static_cast<uint8_t*>(memory));
  munmap(found->second.pages, found->second.pages_bytes);
  allocations().erase(found);
}

}  // namespace xgemm::emulator
