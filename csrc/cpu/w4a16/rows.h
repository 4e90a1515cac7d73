// X as the streaming kernel reads it.
#pragma once

#include <vector>

#include "common/parallel.h"
#include "cpu/buffer.h"
#include "cpu/w4a16/stream.h"

namespace xgemm::cpu::w4a16 {

// All rows of X in blocks of up to kMaxRows, rearranged, and the memory they lie in.
class RowBlocks {
 public:
  RowBlocks(const W4Problem& problem, const Parallel& parallel);
  const std::vector<RowBlock>& blocks() const { return blocks_; }

 private:
  Buffer memory_;
  std::vector<RowBlock> blocks_;
};

// Throws std::out_of_range where an entry of problem.perm is not a channel.
void check_perm(const W4Problem& problem);

}  // namespace xgemm::cpu::w4a16
