// A number for what a launch leaves in memory for its own blocks to recognise.
#pragma once

#include <cstdint>

namespace xgemm::cuda {

// One that no launch has had, that memory does not hold by chance, and never 0.
uint64_t new_nonce();

}  // namespace xgemm::cuda
