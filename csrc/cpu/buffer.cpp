#include "cpu/buffer.h"

#include <cstdlib>
#include <new>

namespace xgemm::cpu {
namespace {

constexpr int64_t kAlignment = 64;

struct Storage {
  void* memory[kSlots] = {};
  int64_t bytes[kSlots] = {};
  ~Storage() {
    for (void* block : memory) std::free(block);
  }
};

Storage& storage() {
  thread_local Storage storage;
  return storage;
}

}  // namespace

Buffer::Buffer(Slot slot, int64_t floats) : slot_(slot) {
  Storage& mine = storage();
  const int i = static_cast<int>(slot);
  const int64_t wanted =
      (floats * static_cast<int64_t>(sizeof(float)) + kAlignment) / kAlignment * kAlignment;
  if (mine.bytes[i] < wanted) {
    std::free(mine.memory[i]);
    mine.bytes[i] = 0;
    mine.memory[i] = std::aligned_alloc(kAlignment, static_cast<size_t>(wanted));
    if (mine.memory[i] == nullptr) throw std::bad_alloc();
    mine.bytes[i] = wanted;
  }
  data_ = static_cast<float*>(mine.memory[i]);
}

Buffer::~Buffer() {
  Storage& mine = storage();
  const int i = static_cast<int>(slot_);
  if (mine.bytes[i] <= kKeepBytes) return;
  std::free(mine.memory[i]);
  mine.memory[i] = nullptr;
  mine.bytes[i] = 0;
}

}  // namespace xgemm::cpu
