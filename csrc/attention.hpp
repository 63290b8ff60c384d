// Attention of a transformer in float32: softmax(scale * q k') v for each head.
#pragma once

#include "proxbit.h"

namespace proxbit {

// One head: rows of `width` floats, each `_row` behind the one before.
struct Head {
  const float *q, *k, *v;
  float* out;
  int64_t q_row, k_row, v_row, out_row;
  int64_t queries, keys, width;
  float scale;
  int64_t run;    // products that are summed in one go
  int64_t lanes;  // of the sum of a softmax
};

struct AttentionKernels {
  void (*attend)(const Head& head);  // throws std::bad_alloc
};

}  // namespace proxbit
