// Depthwise binary convolutions, compiled for AVX-512.
#include "depthwise_loops.hpp"

namespace proxbit {

extern const DepthwiseKernels avx512_depthwise;
const DepthwiseKernels avx512_depthwise = kDepthwiseLoops;

}  // namespace proxbit
