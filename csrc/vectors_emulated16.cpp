// Vectors of 16 bytes in plain C++.
#define PROXBIT_EMULATED_WIDTH 4
#include "emulated.hpp"

namespace proxbit {

PROXBIT_EMULATED(emulated16)

}  // namespace proxbit
