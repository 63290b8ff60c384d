// From floats to bits, a vector at a time.
#pragma once

#include <algorithm>
#include <cstring>

#include "binary.hpp"
#include "counting.hpp"

namespace proxbit {
namespace {

// is_positive of some floats.
INLINE uint32_t signs_of(Floats x) { return above(reinterpret_cast<Ints>(x), all(kLastNegative)); }

constexpr int64_t kEight = kWidth < 8 ? 2 : 1;  // vectors that fill bytes of bits
constexpr int64_t kSigns = kEight * kWidth;

// `count` of them, less their thresholds.
template <int64_t count, class Edge>
INLINE uint64_t signs_at(const float* x, const Edge& edge) {
  uint64_t bits = 0;
  UNROLL for (int64_t i = 0; i < count; i += kWidth)
    bits |= static_cast<uint64_t>(signs_of(load(x + i) - edge(i))) << i;
  return bits;
}

// From k on, as long as `count` of them are left.
template <int64_t count>
INLINE int64_t sign_most(const float* x, int64_t k, int64_t columns, const float* threshold, uint8_t* bits) {
  for (; k + count <= columns; k += count) {
    const uint64_t some = threshold ? signs_at<count>(x + k, [&](int64_t i) { return load(threshold + k + i); })
                                    : signs_at<count>(x + k, [](int64_t) { return Floats{}; });
    std::memcpy(bits + k / 8, &some, count / 8);
  }
  return k;
}

void sign_row(const float* x, int64_t columns, const float* threshold, uint8_t* bits, int64_t row_bytes) {
  int64_t k = sign_most<32>(x, 0, columns, threshold, bits);
  k = sign_most<kSigns>(x, k, columns, threshold, bits);
  std::memset(bits + k / 8, 0, static_cast<size_t>(row_bytes - k / 8));
  for (; k < columns; ++k) {
    const bool positive = is_positive(x[k] - (threshold ? threshold[k] : 0.0f));
    bits[k / 8] |= static_cast<uint8_t>(positive << (k % 8));
  }
}

// Turns eight bytes of eight bits around their diagonal.
inline uint64_t transposed8(uint64_t x) {
  uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aaULL;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000cccc0000ccccULL;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0ULL;
  return x ^ t ^ (t << 28);
}

// Eight channels of kSigns pixels: a square of 8 x 8 bits for each eight pixels.
inline void sign_squares(const float* x, int64_t height, int64_t channel_stride, const float* threshold,
                         uint8_t* bits, int64_t pixel_bytes) {
  uint64_t square[kSigns / 8] = {};
  for (int64_t i = 0; i < height; ++i) {
    const Floats edge = all(threshold ? threshold[i] : 0.0f);
    const uint64_t row = signs_at<kSigns>(x + i * channel_stride, [&](int64_t) { return edge; });
    for (int64_t s = 0; s < kSigns / 8; ++s) square[s] |= (row >> (8 * s) & 255) << (8 * i);
  }
  for (int64_t s = 0; s < kSigns / 8; ++s) {
    const uint64_t turned = transposed8(square[s]);
    for (int64_t p = 0; p < 8; ++p) bits[(8 * s + p) * pixel_bytes] = static_cast<uint8_t>(turned >> (8 * p));
  }
}

void sign_pixels(const float* x, int64_t pixels, int64_t channels, int64_t channel_stride,
                 const float* threshold, uint8_t* bits, int64_t pixel_bytes) {
  for (int64_t c = 0; c < channels; c += 8) {
    const int64_t height = std::min<int64_t>(8, channels - c);
    const float* from = x + c * channel_stride;
    const float* edges = threshold ? threshold + c : nullptr;
    uint8_t* to = bits + c / 8;
    int64_t p = 0;
    for (; p + kSigns <= pixels; p += kSigns)
      sign_squares(from + p, height, channel_stride, edges, to + p * pixel_bytes, pixel_bytes);
    if (p < pixels && pixels >= kSigns) {  // the last ones overlap those before
      p = pixels - kSigns;
      sign_squares(from + p, height, channel_stride, edges, to + p * pixel_bytes, pixel_bytes);
      continue;
    }
    for (; p < pixels; ++p) {
      uint8_t byte = 0;
      for (int64_t i = 0; i < height; ++i)
        byte |= static_cast<uint8_t>(is_positive(from[i * channel_stride + p] - (edges ? edges[i] : 0.0f)) << i);
      to[p * pixel_bytes] = byte;
    }
  }
}

}  // namespace
}  // namespace proxbit
