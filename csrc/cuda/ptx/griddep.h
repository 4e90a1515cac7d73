// Programmatic dependent launch (sm_90). Without its launch attribute both do nothing.
#pragma once

namespace xgemm::ptx {

// Until the kernels before this one in the stream have ended and their writes can be seen.
__device__ inline void griddep_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The next kernel in the stream may start once every CTA has said so, or ended.
__device__ inline void griddep_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace xgemm::ptx
