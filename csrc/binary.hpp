// Binary weights times binary inputs: what the instruction sets share.
//
// Both factors are bits, so a product is +1 where they match, and a sum is 2 * matches - products. The
// bits behind the last product are 0 in both, so they always match and are subtracted again.
#pragma once

#include <cstdint>
#include <cstring>

#include "proxbit.h"
#include "sizes.hpp"

namespace proxbit {

constexpr int64_t kPanel = 64;  // outputs of a panel: work is cut between panels
constexpr int64_t kMostRowBytes = 8188;  // so that matches can be counted in 16 bits

// Panels that outputs fill; the last one may be narrower.
static inline int64_t panels_of(int64_t outputs) { return ceil_div(outputs, kPanel); }

// The bits of -inf as an integer: those of -0.0 and of all numbers below 0 are not above it, those of the
// others are, and those of every NaN, so that NaN is +1 whatever made it.
constexpr int32_t kLastNegative = -0x00800000;

// Whether the sign of a float is +1: its sign bit is not set.
static inline bool is_positive(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits > kLastNegative;
}

// A layer cut down to one group, as the row kernels take it.
struct Product {
  int64_t outputs, row_bytes;  // row_bytes is a multiple of the backend's step
  int64_t offset;              // sum = 2 * matches - offset
  const uint8_t* panels;
  const float* scale;
  const float* bias;
  int32_t register_bits;
  float slope;
  int32_t activation;
  const int32_t* low;
  const int32_t* high;
  const uint8_t* flip;
};

// Where a block of rows goes: floats, or bits, each row a stride behind the one before.
struct Sink {
  float* values;
  uint8_t* bits;
  int64_t stride;
};

// Some lines of the output of a convolution, taken from an image of bits with its border.
struct Slide {
  const Product& product;
  const uint8_t* image;
  int64_t width, pixel_bytes;  // of the image
  int64_t kernel_h, kernel_w, step_h, step_w, dilation_h;
  int64_t out_width, first, count;  // lines [first, first + count)
  const Sink& sink;                 // at the first of these lines
};

// A weight in memory, in the order in which a backend reads it. row_bytes is a multiple of its step.
struct PanelLayout {
  int64_t (*bytes)(int64_t outputs, int64_t row_bytes);
  // Where byte `byte` of the row of an output lies.
  int64_t (*place)(int64_t outputs, int64_t row_bytes, int64_t output, int64_t byte);
};

// One kernel set per instruction set.
struct BinaryKernels {
  int64_t step;       // rows are padded with zeros to a multiple of so many bytes
  int64_t tile;       // rows that share one pass over a panel
  int64_t row_cost;   // bytes of cache that each byte of a row takes while it is multiplied
  PanelLayout layout;
  // bit = is_positive(x - threshold); writes row_bytes bytes.
  void (*sign_row)(const float* x, int64_t columns, const float* threshold, uint8_t* bits,
                   int64_t row_bytes);
  // The same for `pixels` neighbours whose channels are channel_stride apart: bits of pixel p at
  // bits + p * pixel_bytes.
  void (*sign_pixels)(const float* x, int64_t pixels, int64_t channels, int64_t channel_stride,
                      const float* threshold, uint8_t* bits, int64_t pixel_bytes);
  // Rows of bits (row_bytes apart) against panels [first, last).
  void (*multiply)(const Product& product, const uint8_t* rows, int64_t count, int64_t first,
                   int64_t last, const Sink& sink);
  // A convolution without rows of its own, where `slides`; both nullptr where it is never worth it.
  bool (*slides)(const pb_window& window, int64_t pixel_bytes, int64_t out_width);
  void (*slide)(const Slide& slide);
};

// What the linear layer and the convolution share (binary.cpp).
const BinaryKernels& binary_kernels();
int64_t padded_bytes(int64_t row_bytes);
bool sound(const pb_binary* layer, const float* out, const uint8_t* out_bits, const pb_following* then);
Product product_of(const pb_binary& layer, int64_t group);
int useful_threads(const pb_binary& layer, int64_t rows, int threads);
// Rows that one thread takes at a time: enough to pay for splitting a panel, few enough for L2.
int64_t rows_at_once(int64_t rows, int64_t row_bytes, int threads);
// Where a layer writes, and what follows there.
struct Output {
  float* values;
  uint8_t* bits;
  const pb_following* then;
};

Sink sink_at(const Output& out, int64_t width, int64_t row, int64_t column);

}  // namespace proxbit
