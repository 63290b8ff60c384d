// From floats to bits.
#pragma once

#include <algorithm>
#include <cstring>

#include "binary.hpp"
#include "vector_avx2.hpp"

namespace proxbit {

extern const BinaryKernels portable_binary;

namespace {

// is_positive of eight floats.
inline unsigned signs8(__m256 x) {
  const Vec positive = _mm256_cmpgt_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(kLastNegative));
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(positive)));
}

inline unsigned signs8(__m256 x, __m256 edge) { return signs8(_mm256_sub_ps(x, edge)); }

void sign_row(const float* x, int64_t columns, const float* threshold, uint8_t* bits,
              int64_t row_bytes) {
  const __m256 zero = _mm256_setzero_ps();
  int64_t k = 0;
  if (!threshold) {
    for (; k + 32 <= columns; k += 32) {
      const uint32_t word = signs8(_mm256_loadu_ps(x + k)) | signs8(_mm256_loadu_ps(x + k + 8)) << 8 |
                            signs8(_mm256_loadu_ps(x + k + 16)) << 16 |
                            signs8(_mm256_loadu_ps(x + k + 24)) << 24;
      std::memcpy(bits + k / 8, &word, 4);
    }
  }
  for (; k + 8 <= columns; k += 8) {
    const __m256 edge = threshold ? _mm256_loadu_ps(threshold + k) : zero;
    bits[k / 8] = static_cast<uint8_t>(signs8(_mm256_loadu_ps(x + k), edge));
  }
  int64_t done = k / 8;
  if (k < columns) portable_binary.sign_row(x + k, columns - k, threshold ? threshold + k : nullptr, bits + done++, 1);
  std::memset(bits + done, 0, static_cast<size_t>(row_bytes - done));
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

void sign_pixels(const float* x, int64_t pixels, int64_t channels, int64_t channel_stride,
                 const float* threshold, uint8_t* bits, int64_t pixel_bytes) {
  const int64_t whole = pixels / 8 * 8;
  for (int64_t c = 0; c < channels; c += 8) {
    const int64_t height = std::min<int64_t>(8, channels - c);
    for (int64_t p = 0; p < whole; p += 8) {
      uint64_t square = 0;
      for (int64_t i = 0; i < height; ++i) {
        const __m256 edge = _mm256_set1_ps(threshold ? threshold[c + i] : 0.0f);
        square |= static_cast<uint64_t>(signs8(_mm256_loadu_ps(x + (c + i) * channel_stride + p), edge)) << (8 * i);
      }
      square = transposed8(square);
      for (int64_t i = 0; i < 8; ++i) bits[(p + i) * pixel_bytes + c / 8] = static_cast<uint8_t>(square >> (8 * i));
    }
  }
  if (whole < pixels)
    portable_binary.sign_pixels(x + whole, pixels - whole, channels, channel_stride, threshold,
                                bits + whole * pixel_bytes, pixel_bytes);
}

}  // namespace
}  // namespace proxbit
