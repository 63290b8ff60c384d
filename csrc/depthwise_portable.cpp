// Depthwise binary convolutions, compiled for plain C++ vectors.
#include "depthwise_loops.hpp"

namespace proxbit {

extern const DepthwiseKernels portable_depthwise;
const DepthwiseKernels portable_depthwise = kDepthwiseLoops;

}  // namespace proxbit
