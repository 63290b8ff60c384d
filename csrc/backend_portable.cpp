// Plain C++, for any CPU: the bits that every other backend must give.
#include "backend.hpp"
#include "binary.hpp"
#include "quantize.hpp"
#include "weight.hpp"
#include "wrap.hpp"

namespace proxbit {

extern const BinaryKernels portable_binary;
extern const WeightKernels portable_weight;
extern const QuantizeKernels portable_quantize;
extern const WrapKernels portable_wrap;

static bool supported() { return true; }

extern const Backend portable_backend;
const Backend portable_backend = {"portable", supported, true, portable_binary, portable_weight,
                                  portable_quantize, portable_wrap};

}  // namespace proxbit
