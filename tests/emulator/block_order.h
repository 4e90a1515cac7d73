// The order in which blocks run, one after another.
#pragma once

namespace xgemm::emulator {

// Blocks that wait for others wait for those with smaller numbers, which then have not run yet. Of
// all others, who writes over what is another's is seen in one of both orders.
extern bool descending_blocks;

}  // namespace xgemm::emulator
