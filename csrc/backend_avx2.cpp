// AVX2: PC processors since 2013.
#include "backend.hpp"
#include "binary.hpp"
#include "quantize.hpp"
#include "weight.hpp"
#include "wrap.hpp"

namespace proxbit {

extern const BinaryKernels avx2_binary;
extern const WeightKernels avx2_weight;
extern const QuantizeKernels avx2_quantize;
extern const WrapKernels avx2_wrap;
extern const AttentionKernels avx2_attention;
extern const DepthwiseKernels avx2_depthwise;

static bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

extern const Backend avx2_backend;
const Backend avx2_backend = {"avx2", supported, true, avx2_binary, avx2_weight,
                              avx2_quantize, avx2_wrap, &avx2_attention, &avx2_depthwise};

}  // namespace proxbit
