// The loops behind depthwise_*.cpp: a vector of bytes is a channel per byte, and counts where signs differ.
#pragma once

#include <cstring>

#include "binary_finish.hpp"
#include "depthwise.hpp"

namespace proxbit {
namespace {  // a copy for each file: they are compiled for different instruction sets

constexpr int kSignVectors = 4;  // of outputs, as many as a vector has bytes
constexpr int64_t kChannels = kSignVectors * kWidth;
typedef uint8_t SignBytes __attribute__((vector_size(kChannels)));  // lanes behind the last output may wrap
typedef int8_t FewSigns __attribute__((vector_size(kWidth)));

INLINE SignBytes load_bytes(const uint8_t* from) {
  SignBytes v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

#if defined(__AVX512BW__) && !defined(PROXBIT_EMULATED_WIDTH)
INLINE void spread_word(uint64_t bits, uint8_t* to) { _mm512_storeu_si512(to, _mm512_movm_epi8(bits)); }
constexpr int64_t kWordBits = 64;
#else
// Eight bits as eight bytes: each byte keeps its bit, and a carry tells whether it was there.
INLINE void spread_word(uint64_t bits, uint8_t* to) {
  const uint64_t own = bits * 0x0101010101010101u & 0x8040201008040201u;
  const uint64_t top = (own + 0x7f7f7f7f7f7f7f7fu) & 0x8080808080808080u;
  const uint64_t bytes = (top >> 7) * 255;
  std::memcpy(to, &bytes, sizeof bytes);
}
constexpr int64_t kWordBits = 8;
#endif

void spread(const uint8_t* bits, int64_t pixels, int64_t pixel_bytes, int64_t wide, uint8_t* to) {
  constexpr int64_t kWordBytes = kWordBits / 8;
  for (int64_t p = 0; p < pixels; ++p, bits += pixel_bytes, to += wide) {
    for (int64_t b = 0; b < wide / 8; b += kWordBytes) {
      const int64_t here = std::min(kWordBytes, pixel_bytes - b);
      uint64_t word = 0;
      if (here == kWordBytes) std::memcpy(&word, bits + b, kWordBytes);
      else if (here > 0) std::memcpy(&word, bits + b, static_cast<size_t>(here));
      spread_word(word, to + 8 * b);
    }
  }
}

// `Pixels` neighbours in the output.
template <int Pixels, Out out>
INLINE void convolve_pixels(const DepthwiseLines& d, const Columns<kSignVectors, out>& columns, int64_t begin, int64_t y,
                            int64_t x) {
  SignBytes different[Pixels] = {};  // counted downwards from 0, so they are read as signed below
  const uint8_t *weights = d.weights + begin, *from = d.image + y * d.line_step + x * d.pixel_step + begin;
  for (int64_t i = 0; i < d.kernel_h; ++i, from += d.tap_h) {
    const uint8_t* pixel = from;
    for (int64_t j = 0; j < d.kernel_w; ++j, pixel += d.tap_w, weights += d.weight_row) {
      const SignBytes w = load_bytes(weights);
      UNROLL for (int p = 0; p < Pixels; ++p) different[p] += w ^ load_bytes(pixel + p * d.pixel_step);
    }
  }
  const auto taps = static_cast<int32_t>(d.kernel_h * d.kernel_w);
  UNROLL for (int p = 0; p < Pixels; ++p) {
    Ints sums[kSignVectors];
    UNROLL for (int v = 0; v < kSignVectors; ++v) {
      FewSigns few;
      std::memcpy(&few, reinterpret_cast<const char*>(&different[p]) + v * kWidth, sizeof few);
      const Ints less = __builtin_convertvector(few, Ints);
      sums[v] = taps + (less + less);
    }
    columns.write(y * d.pixels + x + p, sums);
  }
}

template <Out out>
void convolve_into(const DepthwiseLines& d) {
  constexpr int kPixels = 4;
  for (int64_t begin = 0; begin < d.product.outputs; begin += kChannels) {
    const Columns<kSignVectors, out> columns(d.product, begin, d.sink);
    for (int64_t y = 0; y < d.lines; ++y) {
      int64_t x = 0;
      for (; x + kPixels <= d.pixels; x += kPixels) convolve_pixels<kPixels>(d, columns, begin, y, x);
      for (; x < d.pixels; ++x) convolve_pixels<1>(d, columns, begin, y, x);
    }
  }
}

void convolve(const DepthwiseLines& d) {
  if (d.sink.bits) return convolve_into<Out::bits>(d);
  if (d.product.register_bits) return convolve_into<Out::wrapped>(d);
  convolve_into<Out::values>(d);
}

constexpr DepthwiseKernels kDepthwiseLoops = {kChannels, spread, convolve};

}  // namespace
}  // namespace proxbit
