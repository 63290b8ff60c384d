// Attention, compiled for AVX2.
#include "attention_loops.hpp"

namespace proxbit {

extern const AttentionKernels avx2_attention;
const AttentionKernels avx2_attention = kAttentionLoops;

}  // namespace proxbit
