// The loops behind wrap_portable.cpp and wrap_avx2.cpp.
#pragma once

#include <cstdint>

#include "floats.hpp"
#include "wrap.hpp"

namespace proxbit {
namespace {  // a copy for each file: they are compiled for different instruction sets

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

int64_t forward(const Register& reg, const float* z, float* out, int64_t n) {
  Ints over{};  // a lane counts to n / kWidth at most
  const auto wrapped = [&](Floats sums) {
    const Floats rounds = turns(reg, sums);
    over -= rounds != 0.0f;
    return cyclic(reg, sums - rounds * reg.period);
  };
  each(z, out, n, wrapped);
  int64_t total = 0;
  for (int64_t lane = 0; lane < kWidth; ++lane) total += over[lane];
  return total;
}

void backward(const Register& reg, const float* z, const float* g, float* out, int64_t n) {
  int64_t i = 0;
  const auto pulled = [&](Floats sums, Floats grads) {
    const Floats m = sums - turns(reg, sums) * reg.period;
    return grads * (reg.end - size_of(m) < 0.0f ? all(-reg.slope) : all(1.0f));
  };
  for (; i + kWidth <= n; i += kWidth) store(out + i, pulled(load(z + i), load(g + i)));
  if (i < n) store(out + i, pulled(load(z + i, n - i), load(g + i, n - i)), n - i);
}

constexpr WrapKernels kWrapLoops = {forward, backward};

}  // namespace
}  // namespace proxbit
