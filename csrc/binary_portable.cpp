// Binary times binary in plain C++: what the other backends must give. The weight stays in rows.
#include <cstring>

#include "activation.hpp"
#include "binary.hpp"
#include "finish.hpp"

namespace proxbit {
namespace {

constexpr int64_t kStep = 8;

void sign_row(const float* x, int64_t columns, const float* threshold, uint8_t* bits,
              int64_t row_bytes) {
  std::memset(bits, 0, static_cast<size_t>(row_bytes));
  for (int64_t k = 0; k < columns; ++k) {
    const bool positive = is_positive(x[k] - (threshold ? threshold[k] : 0.0f));
    bits[k / 8] |= static_cast<uint8_t>(positive << (k % 8));
  }
}

void sign_pixels(const float* x, int64_t pixels, int64_t channels, int64_t channel_stride,
                 const float* threshold, uint8_t* bits, int64_t pixel_bytes) {
  std::memset(bits, 0, static_cast<size_t>(pixels * pixel_bytes));
  for (int64_t c = 0; c < channels; ++c) {
    const float edge = threshold ? threshold[c] : 0.0f;
    for (int64_t p = 0; p < pixels; ++p) {
      const bool positive = is_positive(x[c * channel_stride + p] - edge);
      bits[p * pixel_bytes + c / 8] |= static_cast<uint8_t>(positive << (c % 8));
    }
  }
}

int popcount(uint64_t x) {
  x = x - ((x >> 1) & 0x5555555555555555u);
  x = (x & 0x3333333333333333u) + ((x >> 2) & 0x3333333333333333u);
  return static_cast<int>(((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56);
}

int32_t sum_of(const Product& product, const uint8_t* row, int64_t output) {
  const uint8_t* weights = product.panels + output * product.row_bytes;
  int32_t different = 0;
  for (int64_t b = 0; b < product.row_bytes; b += kStep) {
    uint64_t here, there;
    std::memcpy(&here, row + b, kStep);
    std::memcpy(&there, weights + b, kStep);
    different += popcount(here ^ there);
  }
  const int32_t matches = static_cast<int32_t>(8 * product.row_bytes) - different;
  const int32_t sum = 2 * matches - static_cast<int32_t>(product.offset);
  return product.register_bits ? wrapped(sum, product.register_bits) : sum;
}

float value_of(const Product& product, int32_t sum, int64_t output) {
  float value = static_cast<float>(sum);
  if (product.register_bits) value = Cyclic(product.slope, product.register_bits)(value);
  value = value * product.scale[output] + (product.bias ? product.bias[output] : 0.0f);
  return activated(value, product.activation);
}

bool bit_of(const Product& product, int32_t sum, int64_t output) {
  const bool inside = product.low[output] <= sum && sum < product.high[output];
  return inside != (product.flip[output] != 0);
}

void multiply(const Product& product, const uint8_t* rows, int64_t count, int64_t first,
              int64_t last, const Sink& sink) {
  const int64_t end = last * kPanel < product.outputs ? last * kPanel : product.outputs;
  for (int64_t r = 0; r < count; ++r) {
    const uint8_t* row = rows + r * product.row_bytes;
    if (sink.bits) std::memset(sink.bits + r * sink.stride + first * 8, 0, (end - first * kPanel + 7) / 8);
    for (int64_t n = first * kPanel; n < end; ++n) {
      const int32_t sum = sum_of(product, row, n);
      if (sink.bits) {
        sink.bits[r * sink.stride + n / 8] |=
            static_cast<uint8_t>(bit_of(product, sum, n) << (n % 8));
      } else {
        sink.values[r * sink.stride + n] = value_of(product, sum, n);
      }
    }
  }
}

int64_t panels_size(int64_t outputs, int64_t row_bytes) { return outputs * row_bytes; }
int64_t place_of(int64_t, int64_t row_bytes, int64_t output, int64_t byte) { return output * row_bytes + byte; }

}  // namespace

extern const BinaryKernels portable_binary;
const BinaryKernels portable_binary = {kStep, 1, 1, {panels_size, place_of}, sign_row, sign_pixels, multiply, nullptr, nullptr};

}  // namespace proxbit
