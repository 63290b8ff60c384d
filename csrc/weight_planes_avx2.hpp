// Few rows with AVX2: a byte shuffle looks up one byte of 32 sums of 4 inputs at once.
#pragma once

#include <immintrin.h>

#include "weight_quantum.hpp"

namespace proxbit {
namespace {

constexpr int64_t kPlaneBytes = 16;  // one byte of each of the 16 entries of a table

// The bytes of 16 entries, byte 0 of all of them first.
inline void split_bytes(__m256i low, __m256i high, uint8_t* to) {
  const __m256i by_byte =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  low = _mm256_shuffle_epi8(low, by_byte);
  high = _mm256_shuffle_epi8(high, by_byte);
  const __m256i first = _mm256_unpacklo_epi32(low, high), second = _mm256_unpackhi_epi32(low, high);
  __m256i* out = reinterpret_cast<__m256i*>(to);
  _mm256_store_si256(out, _mm256_permutevar8x32_epi32(first, in_order));
  _mm256_store_si256(out + 1, _mm256_permutevar8x32_epi32(second, in_order));
}

inline void fill_nibbles(const IntegerRow& row, int64_t inputs) {
  const __m256i bits[3] = {_mm256_setr_epi32(0, -1, 0, -1, 0, -1, 0, -1),
                           _mm256_setr_epi32(0, 0, -1, -1, 0, 0, -1, -1),
                           _mm256_setr_epi32(0, 0, 0, 0, -1, -1, -1, -1)};
  for (int64_t k = 0; k < round_up(inputs, 8); k += kNibbleInputs) {
    const int32_t* values = row.values + k;
    __m256i sums = _mm256_set1_epi32(empty_entry(values));
    for (int j = 0; j < 3; ++j) {
      sums = _mm256_add_epi32(sums, _mm256_and_si256(bits[j], _mm256_set1_epi32(values[j])));
    }
    const __m256i high = _mm256_add_epi32(sums, _mm256_set1_epi32(values[3]));
    split_bytes(sums, high, row.tables + k / kNibbleInputs * kNibbleBytes);
  }
}

// Sums of bytes at even and odd places. `all` wraps around, which the difference undoes.
struct ByteSums {
  __m256i all = _mm256_setzero_si256();
  __m256i odd = _mm256_setzero_si256();

  void add(__m256i bytes) {
    all = _mm256_add_epi16(all, bytes);
    odd = _mm256_add_epi16(odd, _mm256_srli_epi16(bytes, 8));
    asm volatile("" : "+x"(all), "+x"(odd));  // else gcc adds two lookups first and spills
  }
  // The sums at places 4 i + j as 8 integers of 32 bits.
  __m256i part(int j) const {
    const __m256i even = _mm256_sub_epi16(all, _mm256_slli_epi16(odd, 8));
    const __m256i half = j % 2 ? odd : even;
    return j < 2 ? _mm256_and_si256(half, _mm256_set1_epi32(0xffff)) : _mm256_srli_epi32(half, 16);
  }
};

template <int count>
inline void look_up(const uint8_t* tables, __m256i numbers, ByteSums sums[count]) {
  for (int p = 0; p < count; ++p) {
    const __m128i* table = reinterpret_cast<const __m128i*>(tables + p * kPlaneBytes);
    sums[p].add(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(table)), numbers));
  }
}

template <int count>
inline void sum_bytes(const uint8_t* panel, const uint8_t* tables, int64_t bytes,
                      ByteSums sums[count]) {
  const __m256i mask = _mm256_set1_epi8(15);
  for (int64_t b = 0; b < bytes; ++b) {
    const __m256i w =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel + b * kPanelOutputs));
    look_up<count>(tables + 2 * b * kNibbleBytes, _mm256_and_si256(w, mask), sums);
    look_up<count>(tables + (2 * b + 1) * kNibbleBytes,
                   _mm256_and_si256(_mm256_srli_epi16(w, 4), mask), sums);
  }
}

// Adds 8 sums to 8 doubles: the two lower bytes fit 32 bits together.
template <int count>
inline void widen_sums(const ByteSums sums[count], int j, __m256d total[2]) {
  const __m256i low = _mm256_add_epi32(sums[0].part(j), _mm256_slli_epi32(sums[1].part(j), 8));
  total[0] += _mm256_cvtepi32_pd(_mm256_castsi256_si128(low));
  total[1] += _mm256_cvtepi32_pd(_mm256_extracti128_si256(low, 1));
  if constexpr (count == 3) {
    const __m256i high = sums[2].part(j);
    total[0] += _mm256_cvtepi32_pd(_mm256_castsi256_si128(high)) * 65536.0;
    total[1] += _mm256_cvtepi32_pd(_mm256_extracti128_si256(high, 1)) * 65536.0;
  }
}

// 32 sums of +-x: twice what agrees less everything.
template <int count>
inline void sum_panel(const uint8_t* panel, const IntegerRow& row, int64_t bytes,
                      float out[kPanelOutputs]) {
  constexpr int64_t kBytesAtOnce = 128;  // 256 lookups of at most 255 fit 16 bits
  __m256d totals[4][2] = {};
  for (int64_t b = 0; b < bytes; b += kBytesAtOnce) {
    ByteSums sums[count];
    const int64_t some = bytes - b < kBytesAtOnce ? bytes - b : kBytesAtOnce;
    sum_bytes<count>(panel + b * kPanelOutputs, row.tables + 2 * b * kNibbleBytes, some, sums);
    for (int j = 0; j < 4; ++j) widen_sums<count>(sums, j, totals[j]);
  }
  for (int j = 0; j < 8; ++j) {
    const __m256d sum = (totals[j / 2][j % 2] * 2.0 - row.magnitude) * row.quantum;
    _mm_store_ps(out + 4 * j, _mm256_cvtpd_ps(sum));
  }
}

}  // namespace
}  // namespace proxbit
