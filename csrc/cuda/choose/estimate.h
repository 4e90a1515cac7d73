// How long a candidate is expected to take, and the physical parts that this comes from.
#pragma once

#include <limits>

namespace xgemm::cuda::choose {

// What each part takes by itself, in microseconds. Parts overlap, so the whole is less than their
// sum. A kernel leaves out what it does not estimate: 0.
struct Parts {
  double launch = 0;       // the launch, until a CTA runs
  double first_bytes = 0;  // until the first operands are in shared memory
  double dram = 0;         // bytes from memory
  double l2 = 0;           // bytes from L2
  double intake = 0;       // bytes into the busiest SM
  double mma = 0;          // tensor cores, or FMAs where a kernel has none
  double issue = 0;        // other instructions
  double power = 0;        // the products at the clock that the power limit leaves
  double exchange = 0;     // partial sums between CTAs
  double epilogue = 0;     // the last tile's sums and stores
  double copies = 0;       // launches that copy operands first
};

// By name, in the order above.
template <typename Visit>
void for_each_part(const Parts& parts, const Visit& visit) {
  visit("launch", parts.launch);
  visit("first_bytes", parts.first_bytes);
  visit("dram", parts.dram);
  visit("l2", parts.l2);
  visit("intake", parts.intake);
  visit("mma", parts.mma);
  visit("issue", parts.issue);
  visit("power", parts.power);
  visit("exchange", parts.exchange);
  visit("epilogue", parts.epilogue);
  visit("copies", parts.copies);
}

struct Estimate {
  double us = std::numeric_limits<double>::infinity();  // of all that is launched
  Parts parts{};
};

}  // namespace xgemm::cuda::choose
