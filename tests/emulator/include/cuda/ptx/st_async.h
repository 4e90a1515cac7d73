// csrc/cuda/ptx/st_async.h, emulated.
#pragma once

#include <array>
#include <cstring>

#include "emulator/engine.h"

namespace xgemm::ptx {

inline uint32_t mapa(uint32_t address, uint32_t cta_rank) {
  emulator::shared_pointer_in(emulator::shared_pointer(address), cta_rank);
  return address | (cta_rank + 1) << 24;
}

template <size_t kCount>
inline void st_async(uint32_t remote, uint32_t remote_barrier, std::array<float, kCount> values) {
  if (remote % sizeof values != 0) emulator::fail("st.async: a misaligned address");
  void* to = emulator::shared_pointer(remote);
  auto* barrier = static_cast<uint64_t*>(emulator::shared_pointer(remote_barrier));
  emulator::start_copy([=] {
    std::memcpy(to, values.data(), sizeof values);
    emulator::mbarrier_complete(barrier, sizeof values);
  });
}
inline void st_async_v4(uint32_t remote, uint32_t remote_barrier, float x0, float x1, float x2,
                        float x3) {
  st_async<4>(remote, remote_barrier, {x0, x1, x2, x3});
}
inline void st_async_v2(uint32_t remote, uint32_t remote_barrier, float x0, float x1) {
  st_async<2>(remote, remote_barrier, {x0, x1});
}

}  // namespace xgemm::ptx
