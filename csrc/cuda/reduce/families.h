// The families of kernels among which select_config chooses: what each takes, and its best way.
// `listing`, if there is one, gets all ways that were scored.
#pragma once

#include "cuda/choose/engine.h"
#include "cuda/reduce/model.h"
#include "cuda/reduce/view.h"

namespace xgemm::cuda::reduce {

// select_rows.cpp: contiguous elements of an output.
bool fits_rows(const View& v);
int64_t most_of_thin_row(const View& v);  // elements that a thread had better have to itself
// By a lane, a part of a warp, a warp, a block or several.
Config rows(const View& v, choose::Listing<Config>* listing);

// select_columns.cpp: neighbouring elements that belong to neighbouring outputs.
bool fits_columns(const View& v);
Config columns(const View& v, choose::Listing<Config>* listing);
// Rows of several short runs, such as [64, 256, 49] over the first and the last: columns over the
// outer dimension, of which each run's are one output.
bool fits_groups(const View& v);
Config groups(const View& v, choose::Listing<Config>* listing);

// select_thin.cpp: a thread for each output.
bool fits_thin(const View& v);
Config thin(const View& v, choose::Listing<Config>* listing);

}  // namespace xgemm::cuda::reduce
