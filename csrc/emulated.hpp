// A backend of vectors that this CPU need not have, in plain C++: so the loops for wide vectors are tested
// everywhere. Nobody takes it by itself. A file defines PROXBIT_EMULATED_WIDTH (floats in a vector) first.
#include "attention_loops.hpp"
#include "backend.hpp"
#include "binary_words.hpp"
#include "quantize_loops.hpp"
#include "weight.hpp"
#include "wrap_loops.hpp"

namespace proxbit {

extern const WeightKernels portable_weight;

namespace {

bool supported() { return true; }

constexpr BinaryKernels kBinary = kBinaryWords;
constexpr QuantizeKernels kQuantize = kQuantizeLoops;
constexpr WrapKernels kWrap = kWrapLoops;
constexpr AttentionKernels kAttention = kAttentionLoops;

}  // namespace

#define PROXBIT_EMULATED(name)                                              \
  extern const Backend name##_backend;                                      \
  const Backend name##_backend = {#name,           supported, false, kBinary, \
                                  portable_weight, kQuantize, kWrap, &kAttention};

}  // namespace proxbit
