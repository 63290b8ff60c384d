// Attention for any machine.
#include "attention_loops.hpp"

namespace proxbit {

extern const AttentionKernels portable_attention;
const AttentionKernels portable_attention = kAttentionLoops;

}  // namespace proxbit
