// Quantizers in training for any machine.
#include "quantize_loops.hpp"

namespace proxbit {

const QuantizeKernels portable_quantize = kQuantizeLoops;

}  // namespace proxbit
