// A backend of vectors that this CPU need not have, in plain C++: so the loops for wide vectors are tested
// everywhere. Nobody takes it by itself. A file defines PROXBIT_EMULATED_WIDTH (floats in a vector) first.
#include "attention_loops.hpp"
#include "backend.hpp"
#include "binary_words.hpp"
#include "depthwise_loops.hpp"
#include "quantize_loops.hpp"
#include "weight_lanes.hpp"
#include "weight_planes.hpp"
#include "wrap_loops.hpp"

namespace proxbit {
namespace {

bool supported() { return true; }

constexpr int64_t kVectorBytes = 4 * kWidth;

void exact(const Task& task, uint8_t* memory) { exact_task<FloatLanes<kVectorBytes>>(task, memory); }
void input8(const Task& task, uint8_t* memory) {
  input8_task<FloatLanes<kVectorBytes>, ShortLanes<kVectorBytes>>(task, memory);
}

constexpr BinaryKernels kBinary = kBinaryWords;
constexpr WeightKernels kWeight = {panel_place, kVectorBytes, exact, input8, prepare, fill, planes};
constexpr QuantizeKernels kQuantize = kQuantizeLoops;
constexpr WrapKernels kWrap = kWrapLoops;
constexpr AttentionKernels kAttention = kAttentionLoops;
constexpr DepthwiseKernels kDepthwise = kDepthwiseLoops;

}  // namespace

#define PROXBIT_EMULATED(name)                                                                  \
  extern const Backend name##_backend;                                                          \
  const Backend name##_backend = {#name,   supported, false, kBinary, kWeight, kQuantize, kWrap, \
                                  &kAttention, &kDepthwise};

}  // namespace proxbit
