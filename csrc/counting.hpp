// What a vector of integers cannot do in plain C++ alone: count its bits, and say where it is negative.
#pragma once

#include "floats.hpp"

#if !defined(PROXBIT_EMULATED_WIDTH) && defined(__AVX2__)
#include <immintrin.h>
#endif

namespace proxbit {
namespace {

#if !defined(PROXBIT_EMULATED_WIDTH) && defined(__AVX512VPOPCNTDQ__)
INLINE Ints popcount(Ints v) {
  return reinterpret_cast<Ints>(_mm512_popcnt_epi32(reinterpret_cast<__m512i>(v)));
}
#else
INLINE Ints popcount(Ints v) {
  typedef uint32_t Words __attribute__((vector_size(4 * kWidth)));
  Words x = reinterpret_cast<Words>(v);
  x = x - ((x >> 1) & 0x55555555u);
  x = (x & 0x33333333u) + ((x >> 2) & 0x33333333u);
  return reinterpret_cast<Ints>(((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}
#endif

// Bit i: whether a[i] > b[i].
#if !defined(PROXBIT_EMULATED_WIDTH) && defined(__AVX512F__)
INLINE uint32_t above(Ints a, Ints b) {
  return _mm512_cmpgt_epi32_mask(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b));
}
#elif !defined(PROXBIT_EMULATED_WIDTH) && defined(__AVX2__)
INLINE uint32_t above(Ints a, Ints b) {
  const __m256i more = _mm256_cmpgt_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b));
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(more)));
}
#else
INLINE uint32_t above(Ints a, Ints b) {
  uint32_t bits = 0;
  for (int i = 0; i < kWidth; ++i) bits |= static_cast<uint32_t>(a[i] > b[i]) << i;
  return bits;
}
#endif

}  // namespace
}  // namespace proxbit
