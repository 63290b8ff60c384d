// Vectors of 64 bytes in plain C++.
#define PROXBIT_EMULATED_WIDTH 16
#include "emulated.hpp"

namespace proxbit {

PROXBIT_EMULATED(emulated64)

}  // namespace proxbit
