// What a launch says to Python.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "common/status.h"

namespace xgemm::sweep {

// Null, or what went wrong.
inline const char* message_of(const Status& status) {
  static thread_local std::string message;
  if (status.ok()) return nullptr;
  message = std::string(status.where) + ": " + cudaGetErrorString(status.error);
  return message.c_str();
}

}  // namespace xgemm::sweep
