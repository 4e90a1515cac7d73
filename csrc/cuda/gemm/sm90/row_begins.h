// Where the rows of operands begin, which tells how many lines of L2 a load of 128 bytes takes.
#pragma once

#include <cstdint>
#include <numeric>

namespace xgemm::cuda::gemm::sm90 {

// The shares of rows that begin with a line of 128 bytes, and within a sector of 32.
struct RowBegins {
  double with_line, in_sector;

  // That a load takes on average: 1 of a row that begins with a line, the others as said.
  double lines(double of_split_sectors, double of_uneven_row) const {
    return with_line + in_sector * of_split_sectors + (1 - with_line - in_sector) * of_uneven_row;
  }
};
// `stride`: elements from a row to the next one, a multiple of 8.
inline RowBegins row_begins(int64_t stride) {
  constexpr int64_t kLine = 64;
  const int64_t step = std::gcd<int64_t>(stride, kLine);
  return {static_cast<double>(step) / kLine, step == 8 ? 0.5 : 0.0};
}

}  // namespace xgemm::cuda::gemm::sm90
