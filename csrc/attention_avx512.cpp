// Attention, compiled for AVX-512.
#include "attention_loops.hpp"

namespace proxbit {

extern const AttentionKernels avx512_attention;
const AttentionKernels avx512_attention = kAttentionLoops;

}  // namespace proxbit
