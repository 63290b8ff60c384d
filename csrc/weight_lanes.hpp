// Vectors of any size in plain C++, for the kernels of many rows.
#pragma once

#include <cstring>

#include "activation.hpp"
#include "weight_rows.hpp"

namespace proxbit {
namespace {

template <class Element, int64_t size>
struct Lanes {
  static constexpr int64_t bytes = size, count = size / static_cast<int64_t>(sizeof(Element));
  struct value {
    Element v[count];
  };

  static value zero() { return value{}; }
  static value get(const uint8_t* from) {
    value a;
    std::memcpy(a.v, from, size);
    return a;
  }
  static void put(uint8_t* to, value a) { std::memcpy(to, a.v, size); }
  static value add(value a, value b) {
    for (int64_t i = 0; i < count; ++i) a.v[i] = static_cast<Element>(a.v[i] + b.v[i]);
    return a;
  }
  static value negative(value a) {
    for (int64_t i = 0; i < count; ++i) a.v[i] = static_cast<Element>(-a.v[i]);
    return a;
  }
};

template <int64_t size>
struct FloatLanes : Lanes<float, size> {
  using Lanes<float, size>::count;
  using typename Lanes<float, size>::value;
  static value load(const float* from) {
    value a;
    std::memcpy(a.v, from, size);
    return a;
  }
  static void store(float* to, value a) { std::memcpy(to, a.v, size); }
  static value multiply(value a, value b) {
    for (int64_t i = 0; i < count; ++i) a.v[i] *= b.v[i];
    return a;
  }
  static value from_int32(const int32_t* from) {
    value a;
    for (int64_t i = 0; i < count; ++i) a.v[i] = static_cast<float>(from[i]);
    return a;
  }
  static void put_int16(uint8_t* to, value a) {
    int16_t rounded[count];
    for (int64_t i = 0; i < count; ++i) {
      const float x = a.v[i] == a.v[i] ? a.v[i] : 0.0f;  // rows with NaN are computed again
      rounded[i] = static_cast<int16_t>(nearest(x));
    }
    std::memcpy(to, rounded, sizeof rounded);
  }
  static void transpose(value v[count]) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        const float held = v[i].v[j];
        v[i].v[j] = v[j].v[i];
        v[j].v[i] = held;
      }
    }
  }
  static void load_transposed(const float* from, int64_t stride, value v[count]) {
    for (int64_t i = 0; i < count; ++i) v[i] = load(from + i * stride);
    transpose(v);
  }
  static value finish(value sum, value scale, value bias, int32_t activation) {
    for (int64_t i = 0; i < count; ++i) {
      sum.v[i] = activated(sum.v[i] * scale.v[i] + bias.v[i], activation);
    }
    return sum;
  }
};

template <int64_t size>
struct ShortLanes : Lanes<int16_t, size> {
  using Lanes<int16_t, size>::count;
  using typename Lanes<int16_t, size>::value;
  static void widen(const uint8_t* sums, int32_t* totals, bool fresh) {
    const value a = ShortLanes::get(sums);
    for (int64_t i = 0; i < count; ++i) totals[i] = (fresh ? 0 : totals[i]) + a.v[i];
  }
};

}  // namespace
}  // namespace proxbit
