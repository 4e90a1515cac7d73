// A tile of the sm_80 kernel, and how K and the rows are shared out.
#pragma once

#include <cstdint>

namespace xgemm::cuda::w4a16::sm80 {

struct Config {
  int block_m, block_n;
  int warps;
  int stages;               // of the pipeline that a CTA keeps full
  int splits;               // of K, by CTAs
  int64_t ctas;             // of all launches
  int64_t rows_per_launch;  // so that the partial sums fit into the workspace
  int64_t partials_bytes;   // where the workspace begins; 0: K is not split
  bool copy_x;              // first, behind the partial sums, so that whole copies can read it
};

}  // namespace xgemm::cuda::w4a16::sm80
