// Quantizers in training for any machine.
#include "quantize_loops.hpp"

namespace proxbit {

extern const QuantizeKernels portable_quantize;
const QuantizeKernels portable_quantize = kQuantizeLoops;

}  // namespace proxbit
