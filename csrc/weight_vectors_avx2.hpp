// Vectors of 32 bytes of AVX2, for the kernels of many rows.
#pragma once

#include <immintrin.h>

#include "activation.hpp"
#include "weight_rows.hpp"

namespace proxbit {
namespace {

struct Floats32 {
  using value = __m256;
  static constexpr int64_t count = 8, bytes = 32;

  static value zero() { return _mm256_setzero_ps(); }
  static value load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, value a) { _mm256_storeu_ps(to, a); }
  static value get(const uint8_t* from) {
    return _mm256_load_ps(reinterpret_cast<const float*>(from));
  }
  static void put(uint8_t* to, value a) { _mm256_store_ps(reinterpret_cast<float*>(to), a); }
  static value add(value a, value b) { return _mm256_add_ps(a, b); }
  static value multiply(value a, value b) { return _mm256_mul_ps(a, b); }
  static value negative(value a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  static value from_int32(const int32_t* from) {
    return _mm256_cvtepi32_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void put_int16(uint8_t* to, value a) {
    const __m256i wide = _mm256_cvtps_epi32(a);
    const __m128i halves[2] = {_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)};
    _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(halves[0], halves[1]));
  }
  static void transpose(value v[8]);
  static void load_transposed(const float* from, int64_t stride, value v[8]);
  static value finish(value sum, value scale, value bias, int32_t activation) {
    return activated<value>(sum * scale + bias, activation);
  }
};

// Both halves of four vectors, each as a block of 4 x 4.
inline void transpose_blocks(__m256 v[4]) {
  const __m256 low01 = _mm256_unpacklo_ps(v[0], v[1]), high01 = _mm256_unpackhi_ps(v[0], v[1]);
  const __m256 low23 = _mm256_unpacklo_ps(v[2], v[3]), high23 = _mm256_unpackhi_ps(v[2], v[3]);
  v[0] = _mm256_shuffle_ps(low01, low23, 0x44);
  v[1] = _mm256_shuffle_ps(low01, low23, 0xee);
  v[2] = _mm256_shuffle_ps(high01, high23, 0x44);
  v[3] = _mm256_shuffle_ps(high01, high23, 0xee);
}

inline void Floats32::transpose(value v[8]) {
  for (int i = 0; i < 4; ++i) {
    const value upper = v[i], lower = v[i + 4];
    v[i] = _mm256_permute2f128_ps(upper, lower, 0x20);
    v[i + 4] = _mm256_permute2f128_ps(upper, lower, 0x31);
  }
  transpose_blocks(v);
  transpose_blocks(v + 4);
}

// Halves come from memory where they are wanted: a third fewer shuffles.
inline void Floats32::load_transposed(const float* from, int64_t stride, value v[8]) {
  for (int i = 0; i < 8; ++i) {
    const float* upper = from + i % 4 * stride + i / 4 * 4;
    const value half = _mm256_castps128_ps256(_mm_loadu_ps(upper));
    v[i] = _mm256_insertf128_ps(half, _mm_loadu_ps(upper + 4 * stride), 1);
  }
  transpose_blocks(v);
  transpose_blocks(v + 4);
}

struct Shorts32 {
  using value = __m256i;
  static constexpr int64_t count = 16, bytes = 32;

  static value zero() { return _mm256_setzero_si256(); }
  static value get(const uint8_t* from) {
    return _mm256_load_si256(reinterpret_cast<const value*>(from));
  }
  static void put(uint8_t* to, value a) { _mm256_store_si256(reinterpret_cast<value*>(to), a); }
  static value add(value a, value b) { return _mm256_add_epi16(a, b); }
  static value negative(value a) { return _mm256_sub_epi16(zero(), a); }
  static void widen(const uint8_t* sums, int32_t* totals, bool fresh) {
    const value a = get(sums);
    value* to = reinterpret_cast<value*>(totals);
    const value low = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(a));
    const value high = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(a, 1));
    to[0] = fresh ? low : _mm256_add_epi32(to[0], low);
    to[1] = fresh ? high : _mm256_add_epi32(to[1], high);
  }
};

}  // namespace
}  // namespace proxbit
