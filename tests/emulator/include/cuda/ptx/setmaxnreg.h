// csrc/cuda/ptx/setmaxnreg.h, emulated: registers are not counted.
#pragma once

namespace xgemm::ptx {

template <int kRegisters>
inline void setmaxnreg_dec() {}
template <int kRegisters>
inline void setmaxnreg_inc() {}

}  // namespace xgemm::ptx
