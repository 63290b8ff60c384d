// The loops behind wrap_portable.cpp and wrap_avx2.cpp.
#pragma once

#include <cstdint>
#include <cstring>

#include "floats.hpp"
#include "wrap.hpp"

namespace proxbit {
namespace {  // a copy for each file: they are compiled for different instruction sets

typedef int8_t Bytes __attribute__((vector_size(kWidth)));

// From 2^23 on every float is whole; below it fits an int.
inline Floats floor_of(Floats v) {
  const Ints small = size_of(v) < 8388608.0f;
  const Floats inner = small ? v : Floats{};
  const Floats cut = __builtin_convertvector(__builtin_convertvector(inner, Ints), Floats);
  const Floats whole = cut > inner ? cut - 1.0f : cut;
  return small ? whole : v;
}

// How often the register wraps around on its way to z.
inline Floats turns(const Register& reg, Floats z) { return floor_of(z * reg.inverse + 0.5f); }

// The middle one of three lines.
inline Floats cyclic(const Register& reg, Floats m) {
  const Floats back = m * -reg.slope, high = back + reg.top, low = back - reg.top;
  const Floats least = m < high ? m : high;
  return least > low ? least : low;
}

// Up to kWidth sums; the last ones of a part may be fewer.
inline Ints forward_few(const Register& reg, const float* z, float* out, uint8_t* back, int64_t n) {
  const Floats sums = load(z, n), rounds = turns(reg, sums), m = sums - rounds * reg.period;
  store(out, cyclic(reg, m), n);
  if (back) {
    const Bytes falls = __builtin_convertvector(reg.end - size_of(m) < 0.0f, Bytes) & 1;
    std::memcpy(back, &falls, static_cast<size_t>(n));
  }
  return rounds != 0.0f;  // -1 for each that did not fit
}

int64_t forward(const Register& reg, const float* z, float* out, uint8_t* back, int64_t n) {
  Ints fewer{};
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth)
    fewer += forward_few(reg, z + i, out + i, back ? back + i : nullptr, kWidth);
  if (i < n) fewer += forward_few(reg, z + i, out + i, back ? back + i : nullptr, n - i);
  int64_t total = 0;
  for (int64_t lane = 0; lane < kWidth; ++lane) total -= fewer[lane];
  return total;
}

void backward(const uint8_t* back, const float* g, float slope, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = g[i] * (back[i] ? slope : 1.0f);
}

constexpr WrapKernels kWrapLoops = {forward, backward};

}  // namespace
}  // namespace proxbit
