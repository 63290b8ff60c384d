// NEON: every 64-bit ARM processor. Its plain C++ loops over short vectors are NEON already.
#include "backend.hpp"
#include "binary.hpp"
#include "quantize.hpp"
#include "weight.hpp"
#include "wrap.hpp"

namespace proxbit {

extern const BinaryKernels neon_binary;
extern const WeightKernels neon_weight;
extern const QuantizeKernels portable_quantize;
extern const WrapKernels portable_wrap;

static bool supported() { return true; }

extern const Backend neon_backend;
const Backend neon_backend = {"neon", supported, true, neon_binary, neon_weight, portable_quantize, portable_wrap};

}  // namespace proxbit
