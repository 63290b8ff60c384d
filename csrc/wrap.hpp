// Accumulators in training that wrap around, elementwise on floats: what the instruction sets share.
#pragma once

#include <cstdint>

namespace proxbit {

// A register and the cyclic function behind it, their constants worked out once.
struct Register {
  float period;   // 2^bits
  float inverse;  // 1 / period, exact
  float slope;    // of the way down, as a size: k
  float top;      // k * period / 2: the way down, continued to m = 0
  float end;      // the largest |m| on the way up
};

// One kernel set per instruction set; all give the same bits.
struct WrapKernels {
  // Returns how many sums did not fit.
  int64_t (*forward)(const Register& reg, const float* z, float* out, uint8_t* back, int64_t n);
  // out = g times 1, or times `slope` where back is not 0
  void (*backward)(const uint8_t* back, const float* g, float slope, float* out, int64_t n);
};

}  // namespace proxbit
