// Quantizers in training, compiled for AVX-512.
#include "quantize_loops.hpp"

namespace proxbit {

extern const QuantizeKernels avx512_quantize;
const QuantizeKernels avx512_quantize = kQuantizeLoops;

}  // namespace proxbit
