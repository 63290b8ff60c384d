// Accumulators in training, compiled for AVX-512.
#include "wrap_loops.hpp"

namespace proxbit {

extern const WrapKernels avx512_wrap;
const WrapKernels avx512_wrap = kWrapLoops;

}  // namespace proxbit
