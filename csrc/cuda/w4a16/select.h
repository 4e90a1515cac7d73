// The choice of a kernel for a product with a packed 4-bit weight.
#pragma once

#include <optional>
#include <string>

#include "common/device.h"
#include "common/json.h"
#include "cuda/choose/engine.h"
#include "cuda/w4a16/choice.h"
#include "cuda/w4a16/problem.h"

namespace xgemm::cuda::w4a16 {

// Pure: looks at shapes, strides and alignment, not at memory or the GPU. Nothing where no kernel
// takes the problem. `listing`, if there is one, gets all candidates that were scored.
std::optional<Choice> select_config(const Problem& problem, const DeviceInfo& device,
                                    choose::Listing<Choice>* listing = nullptr);
// The same for whoever launches: each thread keeps its last answers.
std::optional<Choice> remembered_config(const Problem& problem, const DeviceInfo& device);

// The same fields for every kernel, for people and tests; 0 where a kernel has no such thing.
struct Fields {
  const char* kernel = "none";   // the folder of the kernel
  int block_m = 0, block_n = 0;  // of a CTA's tile: rows of X, columns
  int warps = 0;                 // of a CTA
  int stages = 0;                // of the pipeline that a warp, or a CTA, keeps full
  int cluster = 1;               // CTAs that share K, or an operand
  int splits = 1;                // of K, by CTAs
  int64_t ctas = 0;              // of the grid, at most
  bool stream_k = false;
  bool copy_x = false;
  int64_t workspace_bytes = 0;
};
Fields fields_of(const Problem& problem, const Choice& choice);
JsonObject to_json(const Fields& fields);

// In words.
std::string explain(const Problem& problem, const Choice& choice);
// An object: the problem, the choice with its estimate and reason, and all candidates that were
// scored, by their estimates. Empty for float32 activations, as select_config.
std::string explain_json(const Problem& problem, const DeviceInfo& device, bool candidates);

}  // namespace xgemm::cuda::w4a16
