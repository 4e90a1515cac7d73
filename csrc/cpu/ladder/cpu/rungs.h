// The rungs of the cpu ladder, each in the file of its number.
#pragma once

#include "cpu/isa/isa.h"
#include "cpu/ladder/api.h"

namespace xgemm::cpu::ladder {

void loops_mnk(const Product& product);    // 0
void loops_mkn(const Product& product);    // 1
void blocked(const Product& product);      // 2
void packed(const Product& product);       // 3
void microkernel(const Product& product);  // 4

}  // namespace xgemm::cpu::ladder
