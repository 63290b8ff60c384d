// Depthwise binary convolutions, compiled for AVX2.
#include "depthwise_loops.hpp"

namespace proxbit {

extern const DepthwiseKernels avx2_depthwise;
const DepthwiseKernels avx2_depthwise = kDepthwiseLoops;

}  // namespace proxbit
