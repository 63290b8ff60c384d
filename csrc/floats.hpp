// Vectors of floats as wide as the instruction set has them, for loops that are compiled once for each:
// without contraction all of them give the same bits.
#pragma once

#include <cstdint>
#include <cstring>

namespace proxbit {
namespace {  // a copy for each file: they are compiled for different instruction sets

#if defined(PROXBIT_EMULATED_WIDTH)  // as wide as other machines have them, in plain C++
constexpr int64_t kWidth = PROXBIT_EMULATED_WIDTH;
#elif defined(__AVX512F__)
constexpr int64_t kWidth = 16;
#elif defined(__AVX2__)
constexpr int64_t kWidth = 8;
#else
constexpr int64_t kWidth = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * kWidth)));
typedef int32_t Ints __attribute__((vector_size(4 * kWidth)));

// Small loops over registers: unrolled early, or the compiler keeps their arrays in memory.
#define UNROLL _Pragma("GCC unroll 8")
#define INLINE inline __attribute__((always_inline))

inline Floats load(const float* from, int64_t n = kWidth) {
  Floats v{};
  std::memcpy(&v, from, static_cast<size_t>(n) * sizeof(float));
  return v;
}

inline void store(float* to, Floats v, int64_t n = kWidth) {
  std::memcpy(to, &v, static_cast<size_t>(n) * sizeof(float));
}

inline Ints load_ints(const void* from) {
  Ints v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline Floats all(float v) { return v - Floats{}; }
inline Ints all(int32_t v) { return v - Ints{}; }
inline Floats size_of(Floats v) { return reinterpret_cast<Floats>(reinterpret_cast<Ints>(v) & INT32_MAX); }

// A value that is not negative, with the sign of another.
inline Floats with_sign(Floats size, Floats of) {
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(size) | (reinterpret_cast<Ints>(of) & INT32_MIN));
}

// Comparisons are turned so that NaN goes through.
inline Floats sign_of(Floats v) { return v == v ? with_sign(all(1.0f), v) : v; }
inline Floats at_most(Floats v, float bound) { return v > bound ? all(bound) : v; }
inline Floats at_least(Floats v, float bound) { return v < bound ? all(bound) : v; }
inline Floats clamp_to(Floats v, float bound) { return at_least(at_most(v, bound), -bound); }

template <class Map>
inline void each(const float* from, float* to, int64_t n, const Map& map) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(to + i, map(load(from + i)));
  if (i < n) store(to + i, map(load(from + i, n - i)), n - i);
}

}  // namespace
}  // namespace proxbit
