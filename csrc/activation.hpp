// What stands behind a sum, for one float or for a vector of them.
//
// T is float, or a vector type with the operators of float, as __m256 is for GCC and Clang. Only
// arithmetic and comparisons are used and nothing is contracted: every T gives the same bits.
#pragma once

#include "proxbit.h"

namespace proxbit {
namespace {  // compiled once per instruction set: the linker must not share these

template <class T>
inline T relu(T x) {
  const T zero = T{} + 0.0f;
  return x < zero ? zero : x;  // in this order NaN passes
}

template <class T>
inline T hardtanh(T x) {
  const T low = T{} - 1.0f, high = T{} + 1.0f;
  x = x < low ? low : x;
  return x > high ? high : x;
}

// erf(x / sqrt(2)) as x P(x^2) / Q(x^2), fitted on [-5.6, 5.6]; 1 in float32 beyond. Error 4e-7.
template <class T>
inline T error_function(T x) {
  const T low = T{} - 5.6f, high = T{} + 5.6f;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const T t = x * x;
  T p = t * 4.42906853e-08f + 1.27129968e-05f;
  p = p * t + 3.47697402e-04f;
  p = p * t + 9.41449450e-03f;
  p = p * t + 6.87518574e-02f;
  p = p * t + 7.97884443e-01f;
  T q = t * 1.18021030e-06f + 7.51011624e-05f;
  q = q * t + 1.91296701e-03f;
  q = q * t + 2.89399823e-02f;
  q = q * t + 2.52833388e-01f;
  q = q * t + 1.0f;
  return hardtanh(x * p / q);
}

// x (1 + erf(x / sqrt(2))) / 2, within 4e-7 max(1, |x|).
template <class T>
inline T gelu(T x) {
  return x * 0.5f * (error_function(x) + 1.0f);
}

template <class T>
inline T activated(T x, int32_t activation) {
  switch (activation) {
    case PB_RELU: return relu(x);
    case PB_GELU: return gelu(x);
    case PB_HARDTANH: return hardtanh(x);
    default: return x;
  }
}

inline bool is_activation(int32_t activation) {
  return activation >= PB_IDENTITY && activation <= PB_HARDTANH;
}

}  // namespace
}  // namespace proxbit
