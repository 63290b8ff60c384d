// Accumulators in training, compiled for AVX2.
#include "wrap_loops.hpp"

namespace proxbit {

extern const WrapKernels avx2_wrap;
const WrapKernels avx2_wrap = kWrapLoops;

}  // namespace proxbit
