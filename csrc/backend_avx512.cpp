// AVX-512 with the extensions that Ice Lake (2019) and Zen 4 (2022) brought; those before take AVX2.
#include "backend.hpp"
#include "binary.hpp"
#include "quantize.hpp"
#include "weight.hpp"
#include "wrap.hpp"

namespace proxbit {

extern const BinaryKernels avx512_binary;
extern const WeightKernels avx512_weight;
extern const QuantizeKernels avx512_quantize;
extern const WrapKernels avx512_wrap;
extern const AttentionKernels avx512_attention;
extern const DepthwiseKernels avx512_depthwise;

static bool supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vpopcntdq");
}

extern const Backend avx512_backend;
const Backend avx512_backend = {"avx512", supported, true, avx512_binary, avx512_weight,
                                avx512_quantize, avx512_wrap, &avx512_attention, &avx512_depthwise};

}  // namespace proxbit
