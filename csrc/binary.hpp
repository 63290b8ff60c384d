// Binary weights times binary inputs: what the instruction sets share.
//
// Both factors are bits, so a product is +1 where they match, and a sum is 2 * matches - products. The
// bits behind the last product are 0 in both, so they always match and are subtracted again.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "proxbit.h"

namespace proxbit {

constexpr int64_t kPanel = 64;  // outputs side by side in memory: two vectors of 32 bytes
constexpr int64_t kHalf = 32;
constexpr int64_t kStep = 3;    // bytes of a row that the inner loop takes at once
constexpr int64_t kTile = 4;    // rows that share one pass over a panel
constexpr int64_t kMaxProducts = 65535;  // matches are counted in 16 bits

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t padded_bytes(int64_t row_bytes) { return round_up(row_bytes, kStep); }

// Whether a product of sizes, none of them negative, can be counted in bits with room to spare.
static inline bool countable(std::initializer_list<int64_t> sizes) {
  int64_t product = 256;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(product, size, &product)) return false;
  return true;
}

// The bits of -inf as an integer: those of -0.0 and of all numbers below 0 are not above it, those of the
// others are, and those of every NaN, so that NaN is +1 whatever made it.
constexpr int32_t kLastNegative = -0x00800000;

// Whether the sign of a float is +1: its sign bit is not set.
static inline bool is_positive(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits > kLastNegative;
}

// In a vector of 32 outputs, byte 4 * i + j belongs to output 8 * j + i: so the j-th bytes of all eight
// 32-bit words are eight outputs in their natural order.
static inline int64_t place_of(int64_t output) { return 4 * (output % 8) + output / 8; }

// A layer cut down to one group, as the row kernels take it.
struct Product {
  int64_t outputs, row_bytes;  // row_bytes is a multiple of kStep
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

// One kernel set per instruction set.
struct BinaryKernels {
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
  // A convolution without rows of its own, where `can_slide`; nullptr where it is not worth it.
  void (*slide)(const Slide& slide);
};

// Whether the windows of a line are neighbours, fill whole steps of three nibbles, and are so short that
// the nibbles of a panel stay in L1 beside the tables: longer ones are faster as rows.
static inline bool can_slide(const pb_window& w, int64_t pixel_bytes, int64_t out_width) {
  constexpr int64_t kLongest = 160;
  return w.dilation_w == 1 && out_width >= kTile && w.kernel_w * pixel_bytes % kStep == 0 &&
         w.kernel_h * w.kernel_w * pixel_bytes <= kLongest;
}

extern const BinaryKernels portable_binary;
extern const BinaryKernels avx2_binary;
const BinaryKernels& binary_kernels();

// What the linear layer and the convolution share (binary.cpp).
int64_t panels_of(int64_t outputs);
bool sound(const pb_binary* layer, const float* out, const uint8_t* out_bits);
Product product_of(const pb_binary& layer, int64_t group);
int useful_threads(const pb_binary& layer, int64_t rows, int threads);
// Rows that one thread takes at a time: enough to pay for splitting a panel, few enough for L2.
int64_t rows_at_once(int64_t rows, int64_t row_bytes, int threads);
Sink sink_at(float* out, uint8_t* out_bits, int64_t width, int64_t row, int64_t column);

}  // namespace proxbit
