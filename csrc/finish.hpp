// From an integer sum to the output, one value at a time: the reference for the vector code.
#pragma once

#include <cstdint>

namespace proxbit {

// What a register of `bits` bits holds after summing up to `sum`.
inline int32_t wrapped(int32_t sum, int bits) {
  const int shift = 32 - bits;
  return static_cast<int32_t>(static_cast<uint32_t>(sum) << shift) >> shift;
}

// The cyclic function: the sum itself near 0, back to 0 with slope -k towards the ends of the register.
struct Cyclic {
  float back, reach;  // -k, and k times half the register

  Cyclic(float slope, int bits)
      : back(-slope), reach(static_cast<float>(static_cast<double>(slope) * (1 << (bits - 1)))) {}

  float operator()(float m) const {
    const float line = m * back;
    const float upper = line + reach, lower = line - reach;
    const float middle = m < upper ? m : upper;
    return middle > lower ? middle : lower;
  }
};

}  // namespace proxbit
