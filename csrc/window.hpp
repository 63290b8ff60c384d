// The window of a convolution: sizes of the padded input and of the output, and what may be read.
#pragma once

#include <cstdint>

#include "proxbit.h"

namespace proxbit {
namespace {

inline int64_t places(int64_t size, int64_t kernel, int64_t dilation, int64_t step) {
  return (size - dilation * (kernel - 1) - 1) / step + 1;
}
inline int64_t padded_height(const pb_window& w) { return w.height + w.pad_top + w.pad_bottom; }
inline int64_t padded_width(const pb_window& w) { return w.width + w.pad_left + w.pad_right; }
inline int64_t out_height(const pb_window& w) {
  return places(padded_height(w), w.kernel_h, w.dilation_h, w.step_h);
}
inline int64_t out_width(const pb_window& w) {
  return places(padded_width(w), w.kernel_w, w.dilation_w, w.step_w);
}

// Whether a pointer comes with as many values as are needed; without one, none may be claimed.
inline bool has(const void* values, int64_t count, int64_t needed) {
  return values ? count == needed : count == 0;
}

// Whether the last float of the input, by its strides, lies within what was given.
inline bool holds_floats(const pb_window& w) {
  const int64_t sizes[] = {w.batch, w.channels, w.height, w.width};
  const int64_t strides[] = {w.stride_n, w.stride_c, w.stride_h, w.stride_w};
  int64_t last = 0;
  for (int i = 0; i < 4; ++i) {
    int64_t reach;
    if (strides[i] < 0 || __builtin_mul_overflow(sizes[i] - 1, strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return false;
    }
  }
  return last < w.in_size;
}

}  // namespace
}  // namespace proxbit
