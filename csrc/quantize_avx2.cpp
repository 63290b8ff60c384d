// Quantizers in training, compiled for AVX2.
#include "quantize_loops.hpp"

namespace proxbit {

extern const QuantizeKernels avx2_quantize;
const QuantizeKernels avx2_quantize = kQuantizeLoops;

}  // namespace proxbit
