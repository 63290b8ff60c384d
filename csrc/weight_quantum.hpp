// A row of floats as integers: how finely, and whether that is fine enough.
#pragma once

#include <cstring>

#include "weight.hpp"

namespace proxbit {
namespace {

// The largest integer of a row: four of them must sum to 24 bits, or one fit 8 bits with its sign.
inline int32_t most_of(int32_t precision) { return precision == PB_INPUT8 ? 127 : (1 << 22) - 1; }

// max |x| as bits of a float: floats without sign are ordered as their bits are, and infinity and
// NaN lie above all others.
inline int32_t largest_bits(const float* x, int64_t count) {
  int32_t largest = 0;
  for (int64_t k = 0; k < count; ++k) {
    int32_t bits;
    std::memcpy(&bits, x + k, 4);
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// Rounds to the nearest integer, halves to even, without a call: beside 1.5 * 2^23 there is no room
// for bits behind the point. For |x| up to 2^22.
inline int32_t nearest(float x) {
  constexpr float shift = 12582912.0f;
  return static_cast<int32_t>((x + shift) - shift);
}

constexpr int32_t kInfinityBits = 0x7f800000;
constexpr float kSmallest = 1e-30f;

struct Quantum {
  float inverse = 0.0f;  // value = nearest(x * inverse)
  double quantum = 0.0;  // x is about value * quantum
  bool fits = true;      // false: not finite, or so small that the inverse is not

  Quantum(const float* x, int64_t count, int32_t most) {
    const int32_t bits = largest_bits(x, count);
    if (bits == 0) return;
    float largest;
    std::memcpy(&largest, &bits, 4);
    fits = largest > kSmallest && bits < kInfinityBits;
    if (!fits) return;
    inverse = static_cast<float>(most) / largest;
    quantum = 1.0 / inverse;
  }
};

// Whether the largest value towers more than 16-fold above the root of the mean square: then its
// rounding would cost the other inputs too much. In integers, so that the order does not matter.
inline bool towers(const int32_t* values, int64_t count) {
  constexpr int32_t drop = 11;                         // squares of 22 bits
  constexpr int64_t top = int64_t{1} << (2 * (22 - drop));
  int64_t energy = 0;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t high = values[k] >> drop;
    energy += high * high;
  }
  return energy * (16 * 16) < top * count;
}

// Fills everything of a row but its tables.
inline void round_row(const float* x, int64_t inputs, int32_t precision, IntegerRow& row) {
  const Quantum q(x, inputs, most_of(precision));
  row.fits = q.fits;
  // INPUT8 multiplies in float32 where there are many rows
  row.quantum = precision == PB_INPUT8 ? static_cast<float>(q.quantum) : q.quantum;
  if (!q.fits) return;
  int64_t magnitude = 0;
  for (int64_t k = 0; k < inputs; ++k) {
    const int32_t value = nearest(x[k] * q.inverse);
    row.values[k] = value;
    magnitude += value < 0 ? -value : value;
  }
  for (int64_t k = inputs; k < round_up(inputs, kPanelInputs); ++k) row.values[k] = 0;
  row.magnitude = static_cast<double>(magnitude);
  if (precision == PB_EXACT && magnitude > 0) row.fits = !towers(row.values, inputs);
}

}  // namespace
}  // namespace proxbit
