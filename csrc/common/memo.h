// What a pure function answered lately, so that it is not asked again.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

namespace xgemm {

// One answer for each hash; a newer one takes its place. Not for several threads at a time.
template <class Key, class Value, int kSlots>
class Memo {
 public:
  // `same(a, b)` compares keys, `make()` is the function.
  template <class Same, class Make>
  const Value& operator()(uint64_t hash, const Key& key, Same same, Make make) {
    std::optional<Entry>& entry = entries_[hash % kSlots];
    if (!entry || !same(entry->key, key)) entry.emplace(Entry{key, make()});
    return entry->value;
  }

 private:
  struct Entry {
    Key key;
    Value value;
  };
  std::optional<Entry> entries_[kSlots];
};

inline uint64_t hash_of(std::initializer_list<int64_t> values) {
  uint64_t hash = 0;
  for (const int64_t value : values) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
    hash ^= hash >> 32;
  }
  return hash;
}

// An address as far as a choice depends on it: how it is aligned, and whether there is one.
inline const void* alignment_of(const void* data) {
  constexpr uintptr_t kMost = 256;
  const auto address = reinterpret_cast<uintptr_t>(data);
  return address == 0 ? nullptr : reinterpret_cast<const void*>(kMost | address % kMost);
}

}  // namespace xgemm
