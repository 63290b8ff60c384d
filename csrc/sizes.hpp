// Counting: rounding up, and products of sizes that must not overflow.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace proxbit {

static constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Whether a product of sizes, none of them negative, can be counted in bits of floats with room to spare.
static inline bool countable(std::initializer_list<int64_t> sizes) {
  int64_t product = 256;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(product, size, &product)) return false;
  return true;
}

}  // namespace proxbit
