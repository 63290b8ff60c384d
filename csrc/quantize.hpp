// Quantizers in training, elementwise on floats: what the instruction sets share.
#pragma once

#include <cstdint>

#include "proxbit.h"

namespace proxbit {

// A map F or a multiplier B at one strength, its constants worked out once.
struct Curve {
  int32_t map;    // pb_forward or pb_backward
  float strength;
  float gain;     // what stands before the curve
  float height;   // PB_LINE at 0
  float slope;    // of PB_LINE
  float peak;     // where PB_PEAKED ends
};

// A curve is evaluated at (w - shift) / unit.
struct Origin {
  const float* shifts;  // one per value, or NULL: then `shift` for all
  float shift;
  float unit;
};

// One kernel set per instruction set; all give the same bits.
struct QuantizeKernels {
  void (*forward)(const Curve& curve, const Origin& origin, const float* w, float* f, int64_t n);
  // out = g * B * factor
  void (*backward)(const Curve& curve, const Origin& origin, const float* w, const float* g,
                   float factor, float* out, int64_t n);
  // The same for bfloat16: in float32, rounded once.
  void (*forward16)(const Curve& curve, const Origin& origin, const uint16_t* w, uint16_t* f, int64_t n);
  void (*backward16)(const Curve& curve, const Origin& origin, const uint16_t* w, const uint16_t* g,
                     float factor, uint16_t* out, int64_t n);
  // The sum of |w|.
  double (*size)(const float* w, int64_t n);
  // The sum of a * b.
  double (*product)(const float* a, const float* b, int64_t n);
  void (*multiply)(float* f, float by, int64_t n);
};

}  // namespace proxbit
