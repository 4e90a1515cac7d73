// Mistakes on purpose, so that a run shows that each kind would be reported.
#include <immintrin.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

#include "cpu/isa/isa.h"
#include "sanitize/cases.h"

namespace xgemm::sanitize {
namespace {

volatile int64_t sink;

void read_past_the_end() {
  auto* five = static_cast<int32_t*>(std::malloc(5 * sizeof(int32_t)));
  std::memset(five, 0, 5 * sizeof(int32_t));
  volatile int index = 5;
  sink = five[index];
  std::free(five);
}

void overflow() {
  volatile int64_t rows = std::numeric_limits<int64_t>::max();
  sink = rows + 1;
}

void race() {
  int64_t total = 0;
  std::thread other([&] { ++total; });
  ++total;
  other.join();
  sink = total;
}

// A masked load, which no sanitizer sees, of the element after the last.
XGEMM_TARGET_AVX2 void masked_read_past_the_end() {
  const Memory five(5 * sizeof(int32_t), Memory::Place::kBeforeGuard);
  const auto* first = reinterpret_cast<const int32_t*>(five.data());
  const __m256i mask = _mm256_setr_epi32(-1, -1, -1, -1, -1, -1, 0, 0);
  sink = _mm256_extract_epi32(_mm256_maskload_epi32(first, mask), 5);
}

}  // namespace

bool make_mistake(const char* name) {
  if (std::strcmp(name, "read") == 0) {
    read_past_the_end();
  } else if (std::strcmp(name, "masked-read") == 0) {
    masked_read_past_the_end();
  } else if (std::strcmp(name, "overflow") == 0) {
    overflow();
  } else if (std::strcmp(name, "race") == 0) {
    race();
  } else {
    return false;
  }
  return true;
}

}  // namespace xgemm::sanitize
