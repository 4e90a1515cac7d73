// How a reduction is cut up: which dimension the kernel runs along, into what tiles, in how many
// pieces. A pure function of the problem, never of the number of threads, so that neither are the
// bits of the result.
#pragma once

#include <cstdint>

#include "cpu/reduce/api.h"
#include "cpu/reduce/kernel_table.h"

namespace xgemm::cpu::reduce_detail {

enum class Direction : int8_t {
  kRows,     // the elements that lie closest are reduced with each other
  kColumns,  // the elements that lie closest belong to different outputs
};

struct Plan {
  Direction direction = Direction::kRows;
  ReduceDims kept, reduced;  // merged; each has at least one dimension
  int64_t outputs = 1;       // product of kept
  int64_t extent = 1;        // product of reduced
  int64_t tile = 1;          // outputs along the innermost kept dimension, taken together
  int64_t tiles_inner = 1;   // tiles along it
  int64_t tiles = 1;
  int64_t pieces = 1;  // of the reduced extent; their results are combined in order
};

Plan make_plan(const ReduceProblem& problem);

}  // namespace xgemm::cpu::reduce_detail
