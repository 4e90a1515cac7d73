// Scratch memory that a thread keeps between calls.
#pragma once

#include <cstdint>

namespace xgemm::cpu {

enum class Slot : int8_t { kPackedA, kPackedB, kPartial, kRows, kArrangedRows, kSplitK };
inline constexpr int kSlots = 6;

// 64-byte aligned floats of the calling thread, grown on demand and reused by its next call. A slot
// has one owner at a time: a kernel that runs inside another's task uses slots that the other does
// not. What is larger than kKeepBytes is given back at once.
class Buffer {
 public:
  Buffer(Slot slot, int64_t floats);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* data() const { return data_; }

 private:
  static constexpr int64_t kKeepBytes = int64_t{64} << 20;
  Slot slot_;
  float* data_;
};

}  // namespace xgemm::cpu
