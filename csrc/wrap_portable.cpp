// Accumulators in training for any machine.
#include "wrap_loops.hpp"

namespace proxbit {

extern const WrapKernels portable_wrap;
const WrapKernels portable_wrap = kWrapLoops;

}  // namespace proxbit
