// From floats to bits.
#pragma once

#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "binary.hpp"

namespace proxbit {

extern const BinaryKernels portable_binary;

namespace {

// Four masks of four lanes as one of 16, in the same order.
inline uint8x16_t narrow_masks(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
  const uint16x8_t low = vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
  const uint16x8_t high = vuzp1q_u16(vreinterpretq_u16_u32(c), vreinterpretq_u16_u32(d));
  return vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
}

// A mask of 16 lanes as two bytes of bits.
inline void put_bits(uint8x16_t mask, uint8_t* to) {
  const uint8x8_t places = vcreate_u8(0x8040201008040201u);
  const uint8x16_t bits = vandq_u8(mask, vcombine_u8(places, places));
  to[0] = vaddv_u8(vget_low_u8(bits));
  to[1] = vaddv_u8(vget_high_u8(bits));
}

// is_positive of four floats.
inline uint32x4_t positive(float32x4_t x) {
  return vcgtq_s32(vreinterpretq_s32_f32(x), vdupq_n_s32(kLastNegative));
}

// is_positive of 16 floats behind each other; edge(i) is what is taken off the i-th four.
template <class Edge>
inline uint8x16_t positive16(const float* x, const Edge& edge) {
  uint32x4_t masks[4];
  for (int i = 0; i < 4; ++i) masks[i] = positive(vsubq_f32(vld1q_f32(x + 4 * i), edge(i)));
  return narrow_masks(masks[0], masks[1], masks[2], masks[3]);
}

void sign_row(const float* x, int64_t columns, const float* threshold, uint8_t* bits, int64_t row_bytes) {
  int64_t k = 0;
  for (; k + 16 <= columns; k += 16) {
    const float* edges = threshold ? threshold + k : nullptr;
    const auto edge = [&](int i) { return edges ? vld1q_f32(edges + 4 * i) : vdupq_n_f32(0.0f); };
    put_bits(positive16(x + k, edge), bits + k / 8);
  }
  portable_binary.sign_row(x + k, columns - k, threshold ? threshold + k : nullptr, bits + k / 8,
                           row_bytes - k / 8);
}

// Eight channels of 16 pixels: a byte for each pixel.
inline uint8x16_t signs_of_pixels(const float* x, int64_t channels, int64_t channel_stride, const float* threshold) {
  uint8x16_t bits = vdupq_n_u8(0);
  for (int64_t i = 0; i < channels; ++i) {
    const float32x4_t edge = vdupq_n_f32(threshold ? threshold[i] : 0.0f);
    const uint8x16_t mask = positive16(x + i * channel_stride, [=](int) { return edge; });
    bits = vorrq_u8(bits, vandq_u8(mask, vdupq_n_u8(static_cast<uint8_t>(1 << i))));
  }
  return bits;
}

void sign_pixels(const float* x, int64_t pixels, int64_t channels, int64_t channel_stride,
                 const float* threshold, uint8_t* bits, int64_t pixel_bytes) {
  const int64_t whole = pixels / 16 * 16;
  for (int64_t c = 0; c < channels; c += 8) {
    const float* edges = threshold ? threshold + c : nullptr;
    for (int64_t p = 0; p < whole; p += 16) {
      const float* from = x + c * channel_stride + p;
      uint8_t bytes[16];
      vst1q_u8(bytes, signs_of_pixels(from, std::min<int64_t>(8, channels - c), channel_stride, edges));
      for (int64_t i = 0; i < 16; ++i) bits[(p + i) * pixel_bytes + c / 8] = bytes[i];
    }
  }
  if (whole < pixels)
    portable_binary.sign_pixels(x + whole, pixels - whole, channels, channel_stride, threshold,
                                bits + whole * pixel_bytes, pixel_bytes);
}

}  // namespace
}  // namespace proxbit
