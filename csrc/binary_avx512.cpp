// Binary times binary by counting words, compiled for AVX-512.
#include "binary_words.hpp"

namespace proxbit {

extern const BinaryKernels avx512_binary;
const BinaryKernels avx512_binary = kBinaryWords;

}  // namespace proxbit
