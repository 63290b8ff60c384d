// Vectors of 32 bytes in plain C++.
#define PROXBIT_EMULATED_WIDTH 8
#include "emulated.hpp"

namespace proxbit {

PROXBIT_EMULATED(emulated32)

}  // namespace proxbit
