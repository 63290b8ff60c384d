// Few rows with AVX2: a byte shuffle looks up one digit of 32 sums of 4 inputs at once.
//
// Digits have 6 bits, so that four lookups can be added before they leave their byte: that is
// cheaper than fewer digits of 8 bits.
#pragma once

#include <immintrin.h>

#include "weight_quantum.hpp"
#include "weight_rows.hpp"

namespace proxbit {
namespace {

constexpr int64_t kDigitBytes = 16;    // one digit of each of the 16 entries of a table
constexpr int64_t kBytesAtOnce = 128;  // of a row of weights: their tables fill half of an L1 cache

// The two digits of 16 numbers of 12 bits, all lower ones first.
inline void put_digits(__m256i numbers, uint8_t* to) {
  const __m256i by_digit = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m256i six = _mm256_set1_epi16(63);
  const __m256i upper = _mm256_slli_epi16(_mm256_andnot_si256(six, numbers), 2);
  const __m256i digits = _mm256_or_si256(_mm256_and_si256(numbers, six), upper);
  const __m256i sorted = _mm256_shuffle_epi8(digits, by_digit);
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(sorted, 0xd8));
}

// What a table holds where no bit is set: how much four values disagree with four minus signs.
inline __m256i empty_entry(const int32_t* values) {
  const __m128i v = _mm_load_si128(reinterpret_cast<const __m128i*>(values));
  __m128i sum = _mm_min_epi32(v, _mm_setzero_si128());
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  return _mm256_broadcastd_epi32(_mm_sub_epi32(_mm_setzero_si128(), sum));
}

// 0, or the value where a bit of the entry's number is set.
inline __m256i where(__m256i bit, int32_t value) {
  return _mm256_and_si256(bit, _mm256_set1_epi32(value));
}

// The 16 sums of four values as digits. The entries with bit 2 are apart, because packing takes
// four and four of its two vectors.
template <int digits>
inline void fill_nibble(const int32_t* values, uint8_t* table) {
  const __m256i bit0 = _mm256_setr_epi32(0, -1, 0, -1, 0, -1, 0, -1);
  const __m256i bit1 = _mm256_setr_epi32(0, 0, -1, -1, 0, 0, -1, -1);
  const __m256i bit3 = _mm256_setr_epi32(0, 0, 0, 0, -1, -1, -1, -1);
  const __m256i twelve = _mm256_set1_epi32(0xfff);
  const __m256i pair = _mm256_add_epi32(where(bit0, values[0]), where(bit1, values[1]));
  const __m256i rest = _mm256_add_epi32(empty_entry(values), where(bit3, values[3]));
  const __m256i low = _mm256_add_epi32(pair, rest);
  const __m256i high = _mm256_add_epi32(low, _mm256_set1_epi32(values[2]));
  put_digits(_mm256_packus_epi32(_mm256_and_si256(low, twelve), _mm256_and_si256(high, twelve)),
             table);
  if constexpr (digits == 4) {
    put_digits(_mm256_packus_epi32(_mm256_srli_epi32(low, 12), _mm256_srli_epi32(high, 12)),
               table + 2 * kDigitBytes);
  }
}

template <int digits>
inline void fill_nibbles(const IntegerRow& row, int64_t inputs) {
  for (int64_t k = 0; k < round_up(inputs, kPanelInputs); k += kNibbleInputs) {
    fill_nibble<digits>(row.values + k, row.tables + k / kNibbleInputs * kNibbleBytes);
  }
}

// Sums of bytes at even and odd places. `all` wraps around, which the difference undoes.
struct ByteSums {
  __m256i all = _mm256_setzero_si256();
  __m256i odd = _mm256_setzero_si256();

  void add(__m256i bytes) {
    all = _mm256_add_epi16(all, bytes);
    odd = _mm256_add_epi16(odd, _mm256_srli_epi16(bytes, 8));
  }
  // The sums at places 4 i + j as 8 integers of 32 bits.
  __m256i part(int j) const {
    const __m256i even = _mm256_sub_epi16(all, _mm256_slli_epi16(odd, 8));
    const __m256i half = j % 2 ? odd : even;
    return j < 2 ? _mm256_and_si256(half, _mm256_set1_epi32(0xffff)) : _mm256_srli_epi32(half, 16);
  }
};

inline __m256i look_up(const uint8_t* table, __m256i numbers) {
  const __m128i entries = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), numbers);
}

// Adds what 16 inputs give to every digit of 32 sums.
template <int digits>
inline void add_inputs(const uint8_t* panel, const uint8_t* tables, ByteSums sums[digits]) {
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i* bytes = reinterpret_cast<const __m256i*>(panel);
  __m256i numbers[4];
  for (int i = 0; i < 2; ++i) {
    const __m256i w = _mm256_loadu_si256(bytes + i);
    numbers[2 * i] = _mm256_and_si256(w, mask);
    numbers[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16(w, 4), mask);
  }
  for (int d = 0; d < digits; ++d) {
    __m256i sum = look_up(tables + d * kDigitBytes, numbers[0]);
    for (int i = 1; i < 4; ++i) {
      asm volatile("" : "+x"(sum));  // else gcc adds in pairs, needs more registers and spills
      sum = _mm256_add_epi8(sum, look_up(tables + i * kNibbleBytes + d * kDigitBytes, numbers[i]));
    }
    asm volatile("" : "+x"(sum));
    sums[d].add(sum);
  }
}

inline void add_doubles(double* totals, __m256i sums, double unit) {
  const __m128i halves[2] = {_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)};
  for (int i = 0; i < 2; ++i) {
    const __m256d more = _mm256_cvtepi32_pd(halves[i]) * unit;
    _mm256_storeu_pd(totals + 4 * i, _mm256_loadu_pd(totals + 4 * i) + more);
  }
}

// Adds 32 sums to their totals: two digits fit 32 bits together.
template <int digits>
inline void add_totals(const ByteSums sums[digits], double* totals) {
  for (int j = 0; j < 4; ++j) {
    double unit = 1.0;
    for (int d = 0; d < digits; d += 2, unit *= 4096.0) {
      const __m256i upper = _mm256_slli_epi32(sums[d + 1].part(j), 6);
      add_doubles(totals + 8 * j, _mm256_add_epi32(sums[d].part(j), upper), unit);
    }
  }
}

// How much 32 outputs agree with at most kBytesAtOnce bytes of inputs: the sum of |value| where
// signs are equal. Always an integer, so the order of the sums does not matter.
template <int digits>
inline void sum_panel(const uint8_t* panel, const uint8_t* tables, int64_t bytes, bool fresh,
                      double* totals) {
  ByteSums sums[digits];
  for (int64_t b = 0; b < bytes; b += 2) {
    add_inputs<digits>(panel + b * kPanelOutputs, tables + 2 * b * kNibbleBytes, sums);
  }
  if (fresh) {
    for (int64_t i = 0; i < kPanelOutputs; ++i) totals[i] = 0.0;
  }
  add_totals<digits>(sums, totals);
}

// 32 sums of +-x: twice what agrees less everything.
inline void signed_sums(const IntegerRow& row, const double* totals, float sums[kPanelOutputs]) {
  for (int64_t i = 0; i < kPanelOutputs; i += 4) {
    const __m256d sum = (_mm256_loadu_pd(totals + i) * 2.0 - row.magnitude) * row.quantum;
    _mm_store_ps(sums + i, _mm256_cvtpd_ps(sum));
  }
}

void fill(IntegerRow& row, int64_t inputs, int32_t precision) {
  if (precision == PB_INPUT8) fill_nibbles<2>(row, inputs);
  else fill_nibbles<4>(row, inputs);
}

void prepare(const float* x, int64_t inputs, int32_t precision, IntegerRow& row) {
  round_row(x, inputs, precision, row);
  if (row.fits) fill(row, inputs, precision);
}

// From the totals of a panel to 32 outputs, or to those that exist; F: a vector of floats.
template <class F>
void finish_panel(const Task& task, const IntegerRow& row, int64_t first, const double* totals) {
  alignas(64) float sums[kPanelOutputs];
  signed_sums(row, totals, sums);
  for (int64_t n = first; n < task.last && n < first + kPanelOutputs; n += F::count) {
    const int64_t some = task.last - n;
    const auto scale = load_some<F>(task.scale + n, some);
    const auto bias = task.bias ? load_some<F>(task.bias + n, some) : F::zero();
    const auto y = F::finish(F::load(sums + n - first), scale, bias, task.activation);
    store_some<F>(task.out + n, some, y);
  }
}

template <class F, int digits>
void planes_of(const Task& task, const IntegerRow& row, double* totals) {
  const int64_t size = panel_bytes(task.inputs), bytes = size / kPanelOutputs;
  for (int64_t b = 0; b < bytes; b += kBytesAtOnce) {
    const int64_t some = bytes - b < kBytesAtOnce ? bytes - b : kBytesAtOnce;
    for (int64_t n = task.first; n < task.last; n += kPanelOutputs) {
      const uint8_t* panel = task.panels + n / kPanelOutputs * size + b * kPanelOutputs;
      sum_panel<digits>(panel, row.tables + 2 * b * kNibbleBytes, some, b == 0,
                        totals + n - task.first);
    }
  }
  for (int64_t n = task.first; n < task.last; n += kPanelOutputs) {
    finish_panel<F>(task, row, n, totals + n - task.first);
  }
}

template <class F>
void planes(const Task& task, const IntegerRow& row, int32_t precision, double* totals) {
  if (precision == PB_INPUT8) planes_of<F, 2>(task, row, totals);
  else planes_of<F, 4>(task, row, totals);
}

// Byte 4 i + j of a panel belongs to output 8 j + i, so that 32-bit lanes unpack to outputs in order.
int64_t panel_place(int64_t output) { return 4 * (output % 8) + output / 8; }

}  // namespace
}  // namespace proxbit
