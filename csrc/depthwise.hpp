// A binary convolution in which each channel has a window of its own (depthwise).
#pragma once

#include <cstdint>

#include "binary.hpp"

namespace proxbit {

constexpr int64_t kMostTaps = 127;  // so that differences can be counted in a byte

// Some lines of the output. Signs are bytes here, 255 for +1 and 0 for -1, and may be read up to a vector behind the
// last. Steps are bytes of the image.
struct DepthwiseLines {
  const Product& product;  // whose outputs follow each other in a pixel of the image
  const uint8_t *weights, *image;
  int64_t weight_row;  // bytes from one place of the window to the next
  int64_t kernel_h, kernel_w, tap_h, tap_w;
  int64_t lines, line_step, pixels, pixel_step;  // of the output
  const Sink& sink;
};

struct DepthwiseKernels {
  int64_t at_once;  // outputs
  // Bits of pixels, `pixel_bytes` each, become bytes, `wide` each: a multiple of at_once.
  void (*spread)(const uint8_t* bits, int64_t pixels, int64_t pixel_bytes, int64_t wide, uint8_t* to);
  void (*convolve)(const DepthwiseLines& lines);
};

}  // namespace proxbit
