// Accumulators in training for any machine.
#include "wrap_loops.hpp"

namespace proxbit {

const WrapKernels portable_wrap = kWrapLoops;

}  // namespace proxbit
