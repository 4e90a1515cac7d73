// The choice of a kernel for a dense product.
#pragma once

#include <optional>
#include <string>

#include "common/device.h"
#include "common/gemm_problem.h"
#include "common/json.h"
#include "cuda/choose/engine.h"
#include "cuda/gemm/choice.h"

namespace xgemm::cuda::gemm {

// Pure: looks at shapes, strides and alignment, not at memory or the GPU. `listing`, if there is
// one, gets all candidates that were scored.
Choice select_config(const GemmProblem& problem, const DeviceInfo& device,
                     choose::Listing<Choice>* listing = nullptr);
// The same for whoever launches: each thread keeps its last answers.
Choice remembered_config(const GemmProblem& problem, const DeviceInfo& device);
// The sm_90a kernel's choice where it reads A as it lies, though TMA cannot (sm90/shifted.h), after
// a copy of such a B: nothing if it cannot. The estimate is of all that is launched.
std::optional<choose::Scored<Choice>> select_shifted(const GemmProblem& problem,
                                                     const DeviceInfo& device,
                                                     choose::Listing<Choice>* listing);

// The same fields for every kernel, for people and tests; 0 where a kernel has no such thing.
struct Fields {
  const char* kernel = "";     // for programs
  const char* described = "";  // for people
  int block_m = 0, block_n = 0;
  int compiled_m = 0, compiled_n = 0;  // the most that a tile has, where it may have less
  int stages = 0;
  int cluster = 1;                      // CTAs that share an operand, or the parts of K
  int splits = 1;                       // of K
  int group = 0;                        // tiles of a rasterization group (csrc/cuda/tile/raster.h)
  bool shifted = false;                 // A is read without a copy, though it is not aligned
  bool swapped = false;                 // D^T = B^T A^T is computed, its rows the columns of D
  int ctas = 0;                         // of the grid
  bool tma_store = false;               // else D is written element by element
  bool copy_a = false, copy_b = false;  // first, so that the kernel can read them
  int64_t workspace_bytes = 0;
};
Fields fields_of(const GemmProblem& problem, const Choice& choice);
JsonObject to_json(const Fields& fields);

// In words.
std::string explain(const GemmProblem& problem, const Choice& choice);
// An object: the problem, the choice with its estimate and reason, and all candidates that were
// weighed, by their estimates.
std::string explain_json(const GemmProblem& problem, const DeviceInfo& device, bool candidates);

}  // namespace xgemm::cuda::gemm
