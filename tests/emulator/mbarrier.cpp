#include <cstring>

#include "emulator/engine.h"

namespace xgemm::emulator {
namespace {

struct Bits {
  uint64_t mark : 2, phase : 1, expected : 20, pending : 20;
  int64_t bytes : 21;  // still to come
};
static_assert(sizeof(Bits) == 8);
constexpr uint64_t kMark = 1;  // of a barrier that was initialised: poison has another one
constexpr uint32_t kMax = (1 << 20) - 1;

Bits read(const uint64_t* barrier) {
  Bits bits;
  std::memcpy(&bits, barrier, sizeof bits);
  if (bits.mark != kMark) fail("an mbarrier that nobody has initialised");
  return bits;
}

// Ends the phase where nothing is missing.
void write(uint64_t* barrier, Bits bits) {
  if (bits.pending == 0 && bits.bytes < 0) fail("an mbarrier got more bytes than it expected");
  if (bits.pending == 0 && bits.bytes == 0) {
    bits.phase ^= 1;
    bits.pending = bits.expected;
  }
  std::memcpy(barrier, &bits, sizeof bits);
}

}  // namespace

void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  shared_address(barrier);
  if (arrivals == 0 || arrivals > kMax) fail("an mbarrier for no, or too many, arrivals");
  write(barrier, {kMark, 0, arrivals, arrivals, 0});
}

void mbarrier_arrive(uint64_t* barrier, uint32_t bytes) {
  Bits bits = read(barrier);
  if (bytes + bits.bytes > kMax) fail("an mbarrier expects too many bytes");
  bits.bytes += bytes;
  --bits.pending;
  write(barrier, bits);
}

void mbarrier_complete(uint64_t* barrier, uint32_t bytes) {
  Bits bits = read(barrier);
  bits.bytes -= bytes;
  write(barrier, bits);
}

bool mbarrier_test(const uint64_t* barrier, uint32_t parity) {
  shared_address(barrier);
  return read(barrier).phase != parity;
}

void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  const uint32_t address = shared_address(barrier);
  read(barrier);
  wait_until([&] { return read(barrier).phase != parity; },
             [&] {
               const Bits bits = read(barrier);
               return "mbarrier at shared address " + std::to_string(address) + ", parity " +
                      std::to_string(parity) + ", which lacks " + std::to_string(bits.pending) +
                      " arrivals and " + std::to_string(bits.bytes) + " bytes";
             });
}

}  // namespace xgemm::emulator
