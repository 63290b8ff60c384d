// Vectors of 32 bytes as two of NEON, for the kernels of many rows.
#pragma once

#include <arm_neon.h>

#include "activation.hpp"
#include "weight_rows.hpp"

namespace proxbit {
namespace {

typedef float Four __attribute__((vector_size(16)));
typedef int16_t Eight __attribute__((vector_size(16)));

struct Floats {
  static constexpr int64_t count = 8, bytes = 32;
  struct value {
    Four low, high;
  };

  static value zero() { return value{}; }
  static value load(const float* from) { return {vld1q_f32(from), vld1q_f32(from + 4)}; }
  static void store(float* to, value a) {
    vst1q_f32(to, a.low);
    vst1q_f32(to + 4, a.high);
  }
  static value get(const uint8_t* from) { return load(reinterpret_cast<const float*>(from)); }
  static void put(uint8_t* to, value a) { store(reinterpret_cast<float*>(to), a); }
  static value add(value a, value b) { return {a.low + b.low, a.high + b.high}; }
  static value multiply(value a, value b) { return {a.low * b.low, a.high * b.high}; }
  static value negative(value a) { return {-a.low, -a.high}; }
  static value from_int32(const int32_t* from) {
    return {vcvtq_f32_s32(vld1q_s32(from)), vcvtq_f32_s32(vld1q_s32(from + 4))};
  }
  static void put_int16(uint8_t* to, value a) {
    const int16x4_t low = vqmovn_s32(vcvtnq_s32_f32(a.low));
    vst1q_s16(reinterpret_cast<int16_t*>(to), vqmovn_high_s32(low, vcvtnq_s32_f32(a.high)));
  }
  static void transpose(value v[8]);
  static void load_transposed(const float* from, int64_t stride, value v[8]) {
    for (int i = 0; i < 8; ++i) v[i] = load(from + i * stride);
    transpose(v);
  }
  static value finish(value sum, value scale, value bias, int32_t activation) {
    return {activated<Four>(sum.low * scale.low + bias.low, activation),
            activated<Four>(sum.high * scale.high + bias.high, activation)};
  }
};

inline Four first_halves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
inline Four second_halves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

// Four vectors around their diagonal.
inline void transpose_block(Four& a, Four& b, Four& c, Four& d) {
  const float32x4_t ab_even = vtrn1q_f32(a, b), ab_odd = vtrn2q_f32(a, b);
  const float32x4_t cd_even = vtrn1q_f32(c, d), cd_odd = vtrn2q_f32(c, d);
  a = first_halves(ab_even, cd_even);
  b = first_halves(ab_odd, cd_odd);
  c = second_halves(ab_even, cd_even);
  d = second_halves(ab_odd, cd_odd);
}

inline void Floats::transpose(value v[8]) {
  for (int i = 0; i < 4; ++i) std::swap(v[i].high, v[i + 4].low);
  for (int i = 0; i < 8; i += 4) {
    transpose_block(v[i].low, v[i + 1].low, v[i + 2].low, v[i + 3].low);
    transpose_block(v[i].high, v[i + 1].high, v[i + 2].high, v[i + 3].high);
  }
}

struct Shorts {
  static constexpr int64_t count = 16, bytes = 32;
  struct value {
    Eight low, high;
  };

  static value zero() { return value{}; }
  static value get(const uint8_t* from) {
    const int16_t* at = reinterpret_cast<const int16_t*>(from);
    return {vld1q_s16(at), vld1q_s16(at + 8)};
  }
  static void put(uint8_t* to, value a) {
    int16_t* at = reinterpret_cast<int16_t*>(to);
    vst1q_s16(at, a.low);
    vst1q_s16(at + 8, a.high);
  }
  static value add(value a, value b) { return {a.low + b.low, a.high + b.high}; }
  static value negative(value a) { return {-a.low, -a.high}; }
  static void widen(const uint8_t* sums, int32_t* totals, bool fresh) {
    const value a = get(sums);
    const int16x8_t halves[2] = {a.low, a.high};
    for (int i = 0; i < 2; ++i, totals += 8) {
      const int32x4_t zero = vdupq_n_s32(0);
      vst1q_s32(totals, vaddw_s16(fresh ? zero : vld1q_s32(totals), vget_low_s16(halves[i])));
      vst1q_s32(totals + 4, vaddw_high_s16(fresh ? zero : vld1q_s32(totals + 4), halves[i]));
    }
  }
};

}  // namespace
}  // namespace proxbit
