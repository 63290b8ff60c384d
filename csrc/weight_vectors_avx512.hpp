// Vectors of 64 bytes of AVX-512, for the kernels of many rows.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // its own headers, in GCC 12
#endif
#include <immintrin.h>

#include "activation.hpp"
#include "weight_rows.hpp"

namespace proxbit {
namespace {

struct Floats64 {
  using value = __m512;
  static constexpr int64_t count = 16, bytes = 64;

  static value zero() { return _mm512_setzero_ps(); }
  static value load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, value a) { _mm512_storeu_ps(to, a); }
  static value get(const uint8_t* from) { return _mm512_load_ps(from); }
  static void put(uint8_t* to, value a) { _mm512_store_ps(to, a); }
  static value add(value a, value b) { return _mm512_add_ps(a, b); }
  static value multiply(value a, value b) { return _mm512_mul_ps(a, b); }
  static value negative(value a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  static value from_int32(const int32_t* from) { return _mm512_cvtepi32_ps(_mm512_load_si512(from)); }
  static void put_int16(uint8_t* to, value a) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a)));
  }
  static void transpose(value v[16]);
  static void load_transposed(const float* from, int64_t stride, value v[16]);
  static value finish(value sum, value scale, value bias, int32_t activation) {
    return activated<value>(sum * scale + bias, activation);
  }
};

// The quarters of four vectors, each as a block of 4 x 4.
inline void transpose_blocks(__m512 v[4]) {
  const __m512 low01 = _mm512_unpacklo_ps(v[0], v[1]), high01 = _mm512_unpackhi_ps(v[0], v[1]);
  const __m512 low23 = _mm512_unpacklo_ps(v[2], v[3]), high23 = _mm512_unpackhi_ps(v[2], v[3]);
  v[0] = _mm512_shuffle_ps(low01, low23, 0x44);
  v[1] = _mm512_shuffle_ps(low01, low23, 0xee);
  v[2] = _mm512_shuffle_ps(high01, high23, 0x44);
  v[3] = _mm512_shuffle_ps(high01, high23, 0xee);
}

// The same for the quarters themselves, which lie i, i + 4, i + 8 and i + 12 vectors behind.
inline void transpose_quarters(__m512* v) {
  const __m512 low01 = _mm512_shuffle_f32x4(v[0], v[4], 0x88), high01 = _mm512_shuffle_f32x4(v[0], v[4], 0xdd);
  const __m512 low23 = _mm512_shuffle_f32x4(v[8], v[12], 0x88), high23 = _mm512_shuffle_f32x4(v[8], v[12], 0xdd);
  v[0] = _mm512_shuffle_f32x4(low01, low23, 0x88);
  v[4] = _mm512_shuffle_f32x4(high01, high23, 0x88);
  v[8] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
  v[12] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
}

inline void Floats64::transpose(value v[16]) {
  for (int i = 0; i < 4; ++i) transpose_quarters(v + i);
  for (int i = 0; i < 16; i += 4) transpose_blocks(v + i);
}

// Quarters come from memory where they are wanted: half as many shuffles.
inline void Floats64::load_transposed(const float* from, int64_t stride, value v[16]) {
  for (int i = 0; i < 16; ++i) {
    const float* first = from + i % 4 * stride + i / 4 * 4;
    v[i] = _mm512_castps128_ps512(_mm_loadu_ps(first));
    v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(first + 4 * stride), 1);
    v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(first + 8 * stride), 2);
    v[i] = _mm512_insertf32x4(v[i], _mm_loadu_ps(first + 12 * stride), 3);
  }
  for (int i = 0; i < 16; i += 4) transpose_blocks(v + i);
}

struct Shorts64 {
  using value = __m512i;
  static constexpr int64_t count = 32, bytes = 64;

  static value zero() { return _mm512_setzero_si512(); }
  static value get(const uint8_t* from) { return _mm512_load_si512(from); }
  static void put(uint8_t* to, value a) { _mm512_store_si512(to, a); }
  static value add(value a, value b) { return _mm512_add_epi16(a, b); }
  static value negative(value a) { return _mm512_sub_epi16(zero(), a); }
  static void widen(const uint8_t* sums, int32_t* totals, bool fresh) {
    const value a = get(sums);
    value* to = reinterpret_cast<value*>(totals);
    const value low = _mm512_cvtepi16_epi32(_mm512_castsi512_si256(a));
    const value high = _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(a, 1));
    to[0] = fresh ? low : _mm512_add_epi32(to[0], low);
    to[1] = fresh ? high : _mm512_add_epi32(to[1], high);
  }
};

}  // namespace
}  // namespace proxbit
