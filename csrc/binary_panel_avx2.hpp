// From counts of matches to the output of one panel.
#pragma once

#include <algorithm>
#include <cstring>

#include "activation.hpp"
#include "binary.hpp"
#include "vector_avx2.hpp"

namespace proxbit {
namespace {

constexpr int64_t kHalf = 32;  // outputs in one vector: a panel has two

// Eight counts per vector, in the order of the outputs, from counts in bytes.
inline void widen_bytes(Vec v, Vec* to) {
  const Vec mask = _mm256_set1_epi32(0xff);
  to[0] = _mm256_and_si256(v, mask);
  to[1] = _mm256_and_si256(_mm256_srli_epi32(v, 8), mask);
  to[2] = _mm256_and_si256(_mm256_srli_epi32(v, 16), mask);
  to[3] = _mm256_srli_epi32(v, 24);
}

// The same from signed bytes.
inline void widen_signed(Vec v, Vec* to) {
  to[0] = _mm256_srai_epi32(_mm256_slli_epi32(v, 24), 24);
  to[1] = _mm256_srai_epi32(_mm256_slli_epi32(v, 16), 24);
  to[2] = _mm256_srai_epi32(_mm256_slli_epi32(v, 8), 24);
  to[3] = _mm256_srai_epi32(v, 24);
}

// The same from counts in 16 bits: even and odd bytes apart.
inline void widen_words(Vec even, Vec odd, Vec* to) {
  const Vec mask = _mm256_set1_epi32(0xffff);
  to[0] = _mm256_and_si256(even, mask);
  to[1] = _mm256_and_si256(odd, mask);
  to[2] = _mm256_srli_epi32(even, 16);
  to[3] = _mm256_srli_epi32(odd, 16);
}

inline Vec bytes_of(Vec even, Vec odd) {  // modulo 256
  return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(0xff)), _mm256_slli_epi16(odd, 8));
}
inline Vec even_bytes(Vec v) { return _mm256_and_si256(v, _mm256_set1_epi16(0xff)); }
inline Vec odd_bytes(Vec v) { return _mm256_srli_epi16(v, 8); }

// What a row becomes: floats, floats behind a register that wraps, floats behind the usual register of
// 8 bits and slope 2, or bits.
enum class Out { values, wrapped, cyclic8, bits };

inline bool is_usual_register(const Product& product) {
  return product.register_bits == 8 && product.slope == 2.0f;
}

// The cyclic function of slope 2 on a register of 8 bits, as integers: |m| or 256 - 2 |m|, whichever is
// less, with the sign of m. At -128 both bytes of the second are 0.
INLINE Vec cyclic8(Vec m) {
  const Vec size = _mm256_abs_epi8(m);
  const Vec back = _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(size, size));
  return _mm256_sign_epi8(_mm256_min_epu8(size, back), m);
}

// `count` values, continued with zeros where a whole panel would reach behind the end.
template <class T>
const T* whole_panel(const T* from, int64_t count, T* spare) {
  if (from && count == kPanel) return from;
  std::memset(spare, 0, kPanel * sizeof(T));
  if (from) std::memcpy(spare, from, static_cast<size_t>(count) * sizeof(T));
  return spare;
}

// Scale and bias of one panel, or its bounds, and where its columns go.
template <Out out>
class Panel {
 public:
  Panel(const Product& product, int64_t index, const Sink& sink)
      : width(std::min(kPanel, product.outputs - index * kPanel)),
        activation_(product.activation),
        sink_(sink),
        begin_(index * kPanel),
        offset_(_mm256_set1_epi32(static_cast<int>(product.offset))),
        offset_value_(_mm256_set1_ps(static_cast<float>(product.offset))) {
    if constexpr (out == Out::bits) {
      low_ = whole_panel(product.low + begin_, width, ints_[0]);
      high_ = whole_panel(product.high + begin_, width, ints_[1]);
      for (int64_t i = 0; i < width; ++i)
        flip_[i / 8] |= static_cast<uint8_t>((product.flip[begin_ + i] != 0) << (i % 8));
    } else {
      scale_ = whole_panel(product.scale + begin_, width, floats_[0]);
      bias_ = whole_panel(product.bias ? product.bias + begin_ : nullptr, width, floats_[1]);
    }
    if (!product.register_bits) return;
    shift_ = _mm_cvtsi32_si128(32 - product.register_bits);
    wraps_ = true;
    const double half = 1 << (product.register_bits - 1);
    back_ = _mm256_set1_ps(-product.slope);
    reach_ = _mm256_set1_ps(static_cast<float>(static_cast<double>(product.slope) * half));
  }

  // From counts of matches modulo 256 to eight counts per vector, or to eight values of cyclic8.
  INLINE void from_counts(Vec counts, Vec* to) const {
    if constexpr (out == Out::cyclic8) {
      const Vec sums = _mm256_sub_epi8(_mm256_add_epi8(counts, counts), offset_byte());
      widen_signed(cyclic8(sums), to);
    } else {
      widen_bytes(counts, to);
    }
  }

  // From counts of matches, eight outputs per vector, to one row of the output.
  template <int Vectors>
  INLINE void write(int64_t row, const Vec (&matches)[4 * Vectors]) const {
    if constexpr (out == Out::bits) {
      write_bits<Vectors>(row, matches);
    } else {
      write_values<Vectors>(row, matches);
    }
  }

  const int64_t width;

 private:
  INLINE Vec offset_byte() const { return _mm256_set1_epi8(static_cast<char>(_mm256_cvtsi256_si32(offset_))); }
  INLINE Vec sum(Vec matches) const { return _mm256_sub_epi32(_mm256_add_epi32(matches, matches), offset_); }
  INLINE Vec wrapped(Vec sum) const { return _mm256_sra_epi32(_mm256_sll_epi32(sum, shift_), shift_); }

  INLINE __m256 cyclic(__m256 m) const {
    const __m256 line = _mm256_mul_ps(m, back_);
    const __m256 middle = _mm256_min_ps(m, _mm256_add_ps(line, reach_));
    return _mm256_max_ps(middle, _mm256_sub_ps(line, reach_));
  }

  INLINE __m256 value(Vec matches, int i) const {
    __m256 value;
    if constexpr (out == Out::wrapped) {
      value = cyclic(_mm256_cvtepi32_ps(wrapped(sum(matches))));
    } else if constexpr (out == Out::cyclic8) {
      value = _mm256_cvtepi32_ps(matches);  // the value itself: see from_counts
    } else {  // a fused step, but between integers: exact
      value = _mm256_fmsub_ps(_mm256_cvtepi32_ps(matches), _mm256_set1_ps(2.0f), offset_value_);
    }
    value = _mm256_mul_ps(value, _mm256_loadu_ps(scale_ + 8 * i));
    return _mm256_add_ps(value, _mm256_loadu_ps(bias_ + 8 * i));
  }

  template <int Vectors>
  INLINE void write_values(int64_t row, const Vec (&matches)[4 * Vectors]) const {
    float* to = sink_.values + row * sink_.stride + begin_;
    const bool whole = width == kHalf * Vectors;
    alignas(32) float spare[kPanel];
    float* row_out = whole ? to : spare;
    UNROLL for (int i = 0; i < 4 * Vectors; ++i) _mm256_storeu_ps(row_out + 8 * i, value(matches[i], i));
    if (activation_) activate<Vectors>(row_out);
    if (!whole) std::memcpy(to, spare, static_cast<size_t>(width) * sizeof(float));
  }

  template <int Vectors>
  void activate(float* row) const {
    for (int i = 0; i < 4 * Vectors; ++i)
      _mm256_storeu_ps(row + 8 * i, activated(_mm256_loadu_ps(row + 8 * i), activation_));
  }

  template <int Vectors>
  INLINE void write_bits(int64_t row, const Vec (&matches)[4 * Vectors]) const {
    uint8_t bytes[4 * Vectors];
    UNROLL for (int i = 0; i < 4 * Vectors; ++i) {
      Vec s = sum(matches[i]);
      if (wraps_) s = wrapped(s);
      const Vec below = _mm256_cmpgt_epi32(load(low_ + 8 * i), s);
      const Vec inside = _mm256_andnot_si256(below, _mm256_cmpgt_epi32(load(high_ + 8 * i), s));
      bytes[i] = static_cast<uint8_t>(_mm256_movemask_ps(_mm256_castsi256_ps(inside)) ^ flip_[i]);
    }
    const int64_t count = (width + 7) / 8;
    if (width % 8) bytes[count - 1] &= static_cast<uint8_t>((1 << (width % 8)) - 1);
    std::memcpy(sink_.bits + row * sink_.stride + begin_ / 8, bytes, static_cast<size_t>(count));
  }

  alignas(32) float floats_[2][kPanel];
  alignas(32) int32_t ints_[2][kPanel];
  const float *scale_ = nullptr, *bias_ = nullptr;
  const int32_t *low_ = nullptr, *high_ = nullptr;
  uint8_t flip_[kPanel / 8] = {};
  int32_t activation_;
  bool wraps_ = false;
  const Sink& sink_;
  int64_t begin_;
  Vec offset_;
  __m256 offset_value_;
  __m128i shift_ = _mm_setzero_si128();
  __m256 back_ = _mm256_setzero_ps(), reach_ = _mm256_setzero_ps();
};

}  // namespace
}  // namespace proxbit
