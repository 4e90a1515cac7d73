// The families of kernels among which select_config chooses: what each takes, and its best way.
#pragma once

#include "cuda/reduce/choice.h"
#include "cuda/reduce/view.h"

namespace xgemm::cuda::reduce {

// select_rows.cpp: contiguous elements of an output.
bool fits_rows(const View& v);
int64_t most_of_thin_row(const View& v);  // elements that a thread had better have to itself
Config rows(const View& v);               // by a lane, a part of a warp, a warp, a block or several

// select_columns.cpp: neighbouring elements that belong to neighbouring outputs.
bool fits_columns(const View& v);
Config columns(const View& v);
// Rows of several short runs, such as [64, 256, 49] over the first and the last: columns over the
// outer dimension, of which each run's are one output.
bool fits_groups(const View& v);
Config groups(const View& v);

// select_thin.cpp: a thread for each output.
bool fits_thin(const View& v);
Config thin(const View& v);
void consider_thin(const View& v, Choice* choice);  // if that is cheaper than what was chosen

}  // namespace xgemm::cuda::reduce
