// Few rows with NEON: a look-up in a register gives one digit of 16 sums of 4 inputs at once.
//
// Digits have 6 bits, so that four look-ups can be added before they leave their byte.
#pragma once

#include <arm_neon.h>

#include "weight_quantum.hpp"
#include "weight_vectors_neon.hpp"

namespace proxbit {
namespace {

constexpr int64_t kLookUps = 16;       // outputs in a vector
constexpr int64_t kDigitBytes = 16;    // one digit of each of the 16 entries of a table
constexpr int64_t kBytesAtOnce = 128;  // of a row of weights: then sums of digits may pass 16 bits

// Byte 4 i + j of a vector belongs to output 4 j + i, so that 32-bit lanes unpack to outputs in order.
int64_t panel_place(int64_t output) { return output / 16 * 16 + 4 * (output % 4) + output % 16 / 4; }

// All 16 sums of four values, as many as agree with the bits of the entry's number.
inline void entries_of(const int32_t* values, uint32x4_t entries[4]) {
  const uint32x4_t bit0 = vreinterpretq_u32_u64(vdupq_n_u64(0xffffffff00000000u));
  const uint32x4_t bit1 = vreinterpretq_u32_u64(vcombine_u64(vcreate_u64(0), vcreate_u64(~uint64_t{0})));
  const int32x4_t v = vld1q_s32(values);
  const int32_t empty = -vaddvq_s32(vminq_s32(v, vdupq_n_s32(0)));
  const auto where = [](uint32x4_t bit, int32_t value) {
    return vandq_u32(bit, vdupq_n_u32(static_cast<uint32_t>(value)));
  };
  entries[0] = vaddq_u32(vdupq_n_u32(static_cast<uint32_t>(empty)),
                         vaddq_u32(where(bit0, values[0]), where(bit1, values[1])));
  entries[1] = vaddq_u32(entries[0], vdupq_n_u32(static_cast<uint32_t>(values[2])));
  const uint32x4_t last = vdupq_n_u32(static_cast<uint32_t>(values[3]));
  entries[2] = vaddq_u32(entries[0], last);
  entries[3] = vaddq_u32(entries[1], last);
}

// The lowest bytes of 16 numbers.
inline uint8x16_t low_bytes(const uint32x4_t numbers[4]) {
  const uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(numbers[0]), vreinterpretq_u16_u32(numbers[1]));
  const uint16x8_t high = vuzp1q_u16(vreinterpretq_u16_u32(numbers[2]), vreinterpretq_u16_u32(numbers[3]));
  return vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
}

template <int digits>
inline void fill_nibbles(const IntegerRow& row, int64_t inputs) {
  for (int64_t k = 0; k < round_up(inputs, kPanelInputs); k += kNibbleInputs) {
    uint32x4_t entries[4];
    entries_of(row.values + k, entries);
    uint8_t* table = row.tables + k / kNibbleInputs * kNibbleBytes;
    for (int d = 0; d < digits; ++d) {
      vst1q_u8(table + d * kDigitBytes, vandq_u8(low_bytes(entries), vdupq_n_u8(63)));
      for (int i = 0; i < 4; ++i) entries[i] = vshrq_n_u32(entries[i], 6);
    }
  }
}

// Sums of bytes at even and odd places. `all` wraps around, which the difference undoes.
struct ByteSums {
  uint16x8_t all = vdupq_n_u16(0), odd = vdupq_n_u16(0);

  void add(uint8x16_t bytes) {
    all = vaddq_u16(all, vreinterpretq_u16_u8(bytes));
    odd = vsraq_n_u16(odd, vreinterpretq_u16_u8(bytes), 8);
  }
  // The sums at places 4 i + j as four integers of 32 bits.
  uint32x4_t part(int j) const {
    const uint16x8_t even = vsubq_u16(all, vshlq_n_u16(odd, 8));
    const uint32x4_t half = vreinterpretq_u32_u16(j % 2 ? odd : even);
    return j < 2 ? vandq_u32(half, vdupq_n_u32(0xffff)) : vshrq_n_u32(half, 16);
  }
};

// Adds what 16 inputs give to every digit of 16 sums.
template <int digits>
inline void add_inputs(const uint8_t* panel, const uint8_t* tables, ByteSums sums[digits]) {
  uint8x16_t numbers[4];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const uint8x16_t w = vld1q_u8(panel + i * kPanelOutputs);
    numbers[2 * i] = vandq_u8(w, vdupq_n_u8(15));
    numbers[2 * i + 1] = vshrq_n_u8(w, 4);
  }
#pragma GCC unroll 4
  for (int d = 0; d < digits; ++d) {
    uint8x16_t sum = vqtbl1q_u8(vld1q_u8(tables + d * kDigitBytes), numbers[0]);
#pragma GCC unroll 3
    for (int i = 1; i < 4; ++i) {
      const uint8x16_t table = vld1q_u8(tables + i * kNibbleBytes + d * kDigitBytes);
      sum = vaddq_u8(sum, vqtbl1q_u8(table, numbers[i]));
    }
    sums[d].add(sum);
  }
}

inline void add_doubles(double* totals, uint32x4_t sums, double unit) {
  const float64x2_t low = vcvtq_f64_u64(vmovl_u32(vget_low_u32(sums)));
  const float64x2_t high = vcvtq_f64_u64(vmovl_high_u32(sums));
  vst1q_f64(totals, vaddq_f64(vld1q_f64(totals), vmulq_n_f64(low, unit)));
  vst1q_f64(totals + 2, vaddq_f64(vld1q_f64(totals + 2), vmulq_n_f64(high, unit)));
}

// How much 16 outputs agree with at most kBytesAtOnce bytes of inputs, added to their totals: the
// sum of |value| where signs are equal. Two digits fit 32 bits together.
template <int digits>
inline void sum_outputs(const uint8_t* panel, const uint8_t* tables, int64_t bytes, double* totals) {
  ByteSums sums[digits];
  for (int64_t b = 0; b < bytes; b += 2) {
    add_inputs<digits>(panel + b * kPanelOutputs, tables + 2 * b * kNibbleBytes, sums);
  }
  for (int j = 0; j < 4; ++j) {
    double unit = 1.0;
    for (int d = 0; d < digits; d += 2, unit *= 4096.0) {
      const uint32x4_t upper = vshlq_n_u32(sums[d + 1].part(j), 6);
      add_doubles(totals + 4 * j, vaddq_u32(sums[d].part(j), upper), unit);
    }
  }
}

// 8 sums of +-x: twice what agrees less everything.
inline Floats::value signed_sums(const IntegerRow& row, const double* totals) {
  float sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = static_cast<float>((totals[i] * 2.0 - row.magnitude) * row.quantum);
  return Floats::load(sums);
}

void fill(IntegerRow& row, int64_t inputs, int32_t precision) {
  if (precision == PB_INPUT8) fill_nibbles<2>(row, inputs);
  else fill_nibbles<4>(row, inputs);
}

void prepare(const float* x, int64_t inputs, int32_t precision, IntegerRow& row) {
  round_row(x, inputs, precision, row);
  if (row.fits) fill(row, inputs, precision);
}

template <int digits>
void planes_of(const Task& task, const IntegerRow& row, double* totals) {
  const int64_t size = panel_bytes(task.inputs), bytes = size / kPanelOutputs;
  for (int64_t n = 0; n < round_up(task.last - task.first, kLookUps); ++n) totals[n] = 0.0;
  for (int64_t b = 0; b < bytes; b += kBytesAtOnce) {
    const int64_t some = bytes - b < kBytesAtOnce ? bytes - b : kBytesAtOnce;
    const uint8_t* tables = row.tables + 2 * b * kNibbleBytes;
    for (int64_t n = task.first; n < task.last; n += kLookUps) {
      const uint8_t* panel = task.panels + n / kPanelOutputs * size + n % kPanelOutputs;
      sum_outputs<digits>(panel + b * kPanelOutputs, tables, some, totals + n - task.first);
    }
  }
  for (int64_t n = task.first; n < task.last; n += 8) {
    const int64_t some = task.last - n;
    const auto scale = load_some<Floats>(task.scale + n, some);
    const auto bias = task.bias ? load_some<Floats>(task.bias + n, some) : Floats::zero();
    const auto sums = signed_sums(row, totals + n - task.first);
    store_some<Floats>(task.out + n, some, Floats::finish(sums, scale, bias, task.activation));
  }
}

void planes(const Task& task, const IntegerRow& row, int32_t precision, double* totals) {
  if (precision == PB_INPUT8) planes_of<2>(task, row, totals);
  else planes_of<4>(task, row, totals);
}

}  // namespace
}  // namespace proxbit
