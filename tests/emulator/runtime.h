// What the tests set of the fake CUDA runtime.
#pragma once

namespace xgemm::emulator {

// The device that launches run on, and that the code of csrc/ asks about.
void use_device(int capability, int sm_count);

}  // namespace xgemm::emulator
