// The loops behind quantize_portable.cpp and quantize_avx2.cpp. Values go through in blocks that stay in
// the first cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "floats.hpp"
#include "quantize.hpp"

namespace proxbit {
namespace {  // a copy for each file: they are compiled for different instruction sets

constexpr int64_t kBlock = 1024;
constexpr int64_t kLanes = 32;  // of a sum
constexpr float kSqrt2 = 1.41421356f;
constexpr float kSwishPeak = 1.19967864f;

// Beyond this tanh(z / 2) is 1 in float, and its slope is below 1e-27: 0, before a product with a
// gradient becomes denormal.
constexpr float kFlat = 64.0f;

// For a = min(z, kFlat) of some z >= 0: a, tanh(z / 2), and the bell p (1 - p) of the sigmoid p of z.
struct Sigmoid {
  Floats a, tanh_half, bell;
};

// exp(-a) = 2^-n (1 + q) with q = exp(r) - 1 and |r| <= log(2) / 2, so that exp(-a) - 1 keeps its digits
// near 0. The polynomial errs by 3e-8 of q. Its terms stand side by side, not in a chain: these few
// operations wait for each other more than for the arithmetic units.
inline Sigmoid sigmoid(Floats z) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const Ints flat = z > kFlat;
  const Floats a = flat ? all(kFlat) : z;
  const Floats shifted = a * 1.44269504f + kRound, n = shifted - kRound;
  const Floats power = reinterpret_cast<Floats>((127 << 23) - (reinterpret_cast<Ints>(shifted) << 23));
  const Floats r = (n * 0.693359375f - a) + n * -2.12194440e-4f, r2 = r * r;
  const Floats low = r * 0.166665763f + 0.5f, middle = r * 0.00836320501f + 0.041666463f;
  const Floats q = (low + r2 * (middle + r2 * 0.00139336882f)) * r2 + r;
  const Floats part = power * q, e = flat ? Floats{} : part + power;
  const Floats inverse = 1.0f / (1.0f + e);
  return {a, ((1.0f - power) - part) * inverse, e * inverse * inverse};  // no -0.0
}

inline Floats swish(Floats z) {
  const Sigmoid at = sigmoid(size_of(z));
  return with_sign(at.tanh_half + 2.0f * at.a * at.bell, z);
}

inline Floats swish_slope(Floats z) {
  const Sigmoid at = sigmoid(size_of(z));
  return (1.0f - at.a * 0.5f * at.tanh_half) * at.bell;
}

// So far out a strength of 0 makes 0, not NaN, and any other has reached its limit.
inline Floats finite(Floats v) { return clamp_to(v, 1e19f); }

void evaluate_forward(const Curve& curve, const float* z, float* f, int64_t n) {
  const float s = curve.strength, gain = curve.gain, peak = curve.peak;
  const float height = curve.height, slope = curve.slope;
  switch (curve.map) {
    case PB_SIGN: return each(z, f, n, sign_of);
    case PB_LINE:
      return each(z, f, n, [=](Floats v) {
        return clamp_to(clamp_to(v, 1.0f) * slope + sign_of(v) * height, 1.0f);
      });
    case PB_SWISH: return each(z, f, n, [=](Floats v) { return swish(finite(v) * s); });
    case PB_PEAKED:
      return each(z, f, n, [=](Floats v) { return swish(finite(clamp_to(v, peak)) * s) / kSwishPeak; });
    case PB_POLY:
      return each(z, f, n, [=](Floats v) {
        const Floats u = clamp_to(v * s, kSqrt2);
        return u * (kSqrt2 - size_of(u) / 2.0f) * gain;
      });
    case PB_TANH:
      return each(z, f, n, [=](Floats v) {
        const Floats u = v * s;
        return with_sign(sigmoid(2.0f * size_of(u)).tanh_half, u) * gain;
      });
  }
}

void evaluate_backward(const Curve& curve, const float* z, float* b, int64_t n) {
  const float s = curve.strength, gain = curve.gain, peak = curve.peak;
  switch (curve.map) {
    case PB_INSIDE:
      return each(z, b, n, [](Floats v) { return at_least(sign_of(1.0f - size_of(v)), 0.0f); });
    case PB_TRIANGLE:
      return each(z, b, n, [](Floats v) { return at_least(2.0f - 2.0f * size_of(v), 0.0f); });
    case PB_SWISH_SLOPE: return each(z, b, n, [=](Floats v) { return swish_slope(finite(v) * s) * gain; });
    case PB_PEAKED_SLOPE:
      return each(z, b, n, [=](Floats v) {
        return at_least(swish_slope(finite(clamp_to(v, peak)) * s) * gain, 0.0f) / kSwishPeak;
      });
    case PB_POLY_SLOPE:
      return each(z, b, n, [=](Floats v) { return at_least(kSqrt2 - size_of(v * s), 0.0f) * gain; });
    case PB_TANH_SLOPE:
      return each(z, b, n, [=](Floats v) { return sigmoid(size_of(v * (2.0f * s))).bell * gain; });
  }
}

// (w - shift) / unit of one block: the weights themselves where nothing is to be done.
inline const float* measured(const Origin& origin, int64_t at, const float* w, float* space, int64_t n) {
  const float shift = origin.shift, unit = origin.unit;
  if (origin.shifts) {
    const float* shifts = origin.shifts + at;
    for (int64_t i = 0; i < n; ++i) space[i] = (w[i] - shifts[i]) / unit;
    return space;
  }
  if (shift == 0.0f && !std::signbit(shift) && unit == 1.0f) return w;  // -0.0 - -0.0 is 0.0
  each(w, space, n, [=](Floats v) { return (v - shift) / unit; });
  return space;
}

void forward(const Curve& curve, const Origin& origin, const float* w, float* f, int64_t n) {
  float space[kBlock];
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t count = std::min(kBlock, n - at);
    evaluate_forward(curve, measured(origin, at, w + at, space, count), f + at, count);
  }
}

void backward(const Curve& curve, const Origin& origin, const float* w, const float* g, float factor,
              float* out, int64_t n) {
  float space[kBlock], b[kBlock];
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t count = std::min(kBlock, n - at);
    evaluate_backward(curve, measured(origin, at, w + at, space, count), b, count);
    for (int64_t i = 0; i < count; ++i) out[at + i] = g[at + i] * b[i] * factor;
  }
}

// bfloat16 is the upper half of a float.
inline void widen(const uint16_t* from, float* to, int64_t n) {
  uint32_t bits[kBlock];
  for (int64_t i = 0; i < n; ++i) bits[i] = static_cast<uint32_t>(from[i]) << 16;
  std::memcpy(to, bits, static_cast<size_t>(n) * sizeof(float));
}

// To the nearest, ties to even; the payload of a NaN is its own.
inline void narrow(const float* from, uint16_t* to, int64_t n) {
  uint32_t bits[kBlock];
  std::memcpy(bits, from, static_cast<size_t>(n) * sizeof(float));
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t rounded = (bits[i] + 0x7fffu + (bits[i] >> 16 & 1u)) >> 16;
    to[i] = static_cast<uint16_t>((bits[i] & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  }
}

inline Origin moved(const Origin& origin, int64_t by) {
  return {origin.shifts ? origin.shifts + by : nullptr, origin.shift, origin.unit};
}

void forward16(const Curve& curve, const Origin& origin, const uint16_t* w, uint16_t* f, int64_t n) {
  float wide[kBlock], found[kBlock];
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t count = std::min(kBlock, n - at);
    widen(w + at, wide, count);
    forward(curve, moved(origin, at), wide, found, count);
    narrow(found, f + at, count);
  }
}

void backward16(const Curve& curve, const Origin& origin, const uint16_t* w, const uint16_t* g,
                float factor, uint16_t* out, int64_t n) {
  float wide[kBlock], upstream[kBlock], found[kBlock];
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t count = std::min(kBlock, n - at);
    widen(w + at, wide, count);
    widen(g + at, upstream, count);
    backward(curve, moved(origin, at), wide, upstream, factor, found, count);
    narrow(found, out + at, count);
  }
}

// Adds the terms of kLanes values to as many sums.
template <class Term>
inline void add_lanes(Floats* sums, const float* a, const float* b, const Term& term) {
  for (int64_t k = 0; k < kLanes; k += kWidth) sums[k / kWidth] += term(load(a + k), load(b + k));
}

// A sum of term(a, b) in one fixed order: lanes side by side in float over a block, blocks in double.
template <class Term>
inline double sum_of(const float* a, const float* b, int64_t n, const Term& term) {
  double total = 0.0;
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t end = std::min(n, at + kBlock);
    Floats sums[kLanes / kWidth] = {};
    int64_t i = at;
    for (; i + kLanes <= end; i += kLanes) add_lanes(sums, a + i, b + i, term);
    if (i < end) {
      float rest_a[kLanes] = {}, rest_b[kLanes] = {};
      std::copy(a + i, a + end, rest_a);
      std::copy(b + i, b + end, rest_b);
      add_lanes(sums, rest_a, rest_b, term);
    }
    float lane[kLanes];
    std::memcpy(lane, sums, sizeof lane);
    for (int64_t half = kLanes / 2; half > 1; half /= 2)
      for (int64_t k = 0; k < half; ++k) lane[k] += lane[k + half];
    total += static_cast<double>(lane[0]) + static_cast<double>(lane[1]);
  }
  return total;
}

double size(const float* w, int64_t n) {
  return sum_of(w, w, n, [](Floats v, Floats) { return size_of(v); });
}

double product(const float* a, const float* b, int64_t n) {
  return sum_of(a, b, n, [](Floats v, Floats u) { return v * u; });
}

void multiply(float* f, float by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) f[i] *= by;
}

constexpr QuantizeKernels kQuantizeLoops = {forward,    backward, forward16, backward16,
                                            size,       product,  multiply};

}  // namespace
}  // namespace proxbit
