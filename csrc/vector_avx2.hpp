// Vectors of bytes, for the files that are compiled for AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "floats.hpp"

namespace proxbit {
namespace {

using Vec = __m256i;

inline Vec load(const void* p) { return _mm256_loadu_si256(static_cast<const Vec*>(p)); }
inline void store(void* p, Vec v) { _mm256_storeu_si256(static_cast<Vec*>(p), v); }
inline Vec twice(const void* p) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(static_cast<const __m128i*>(p)));
}
// Keeps the compiler from reordering sums, which would spill them.
inline void pin(Vec& v) { __asm__ volatile("" : "+x"(v)); }

}  // namespace
}  // namespace proxbit
