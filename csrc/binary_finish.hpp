// From integer sums to one row of some outputs side by side: floats, or bits.
#pragma once

#include <algorithm>
#include <cstring>

#include "activation.hpp"
#include "binary.hpp"
#include "counting.hpp"

namespace proxbit {
namespace {

// What a sum becomes: a float, a float behind a register that wraps, or a bit.
enum class Out { values, wrapped, bits };

// `count` values, continued with zeros where whole vectors would reach behind the end.
template <int64_t most, class T>
const T* whole(const T* from, int64_t count, T* spare) {
  if (from && count >= most) return from;
  std::memset(spare, 0, most * sizeof(T));
  if (from) std::memcpy(spare, from, static_cast<size_t>(count) * sizeof(T));
  return spare;
}

// `Vectors` vectors of outputs from `begin` on: their scale and bias, or their bounds.
template <int Vectors, Out out>
class Columns {
 public:
  static constexpr int64_t kWide = Vectors * kWidth;

  Columns(const Product& product, int64_t begin, const Sink& sink)
      : sink_(sink), begin_(begin), width_(std::min(kWide, product.outputs - begin)), activation_(product.activation) {
    if constexpr (out == Out::bits) {
      low_ = whole<kWide>(product.low + begin, width_, ints_[0]);
      high_ = whole<kWide>(product.high + begin, width_, ints_[1]);
      for (int64_t i = 0; i < width_; ++i) flip_ |= static_cast<uint64_t>(product.flip[begin + i] != 0) << i;
    } else {
      scale_ = whole<kWide>(product.scale + begin, width_, floats_[0]);
      bias_ = whole<kWide>(product.bias ? product.bias + begin : nullptr, width_, floats_[1]);
    }
    if (!product.register_bits) return;
    shift_ = 32 - product.register_bits;
    back_ = -product.slope;
    reach_ = static_cast<float>(static_cast<double>(product.slope) * (1 << (product.register_bits - 1)));
  }

  INLINE void write(int64_t row, const Ints (&sums)[Vectors]) const {
    if constexpr (out == Out::bits) {
      write_bits(row, sums);
    } else {
      write_values(row, sums);
    }
  }

 private:
  INLINE Ints wrapped(Ints sum) const { return (sum << shift_) >> shift_; }

  INLINE Floats cyclic(Floats m) const {
    const Floats line = m * back_, upper = line + reach_, lower = line - reach_;
    const Floats middle = m < upper ? m : upper;
    return middle > lower ? middle : lower;
  }

  INLINE Floats value(Ints sum, int v) const {
    Floats value;
    if constexpr (out == Out::wrapped) {
      value = cyclic(__builtin_convertvector(wrapped(sum), Floats));
    } else {
      value = __builtin_convertvector(sum, Floats);
    }
    return value * load(scale_ + v * kWidth) + load(bias_ + v * kWidth);
  }

  INLINE void write_values(int64_t row, const Ints (&sums)[Vectors]) const {
    float* const to = sink_.values + row * sink_.stride + begin_;
    float spare[kWide];
    float* const place = width_ == kWide ? to : spare;
    UNROLL for (int v = 0; v < Vectors; ++v) store(place + v * kWidth, value(sums[v], v));
    if (activation_) activate(place);
    if (width_ != kWide) std::memcpy(to, spare, static_cast<size_t>(width_) * sizeof(float));
  }

  void activate(float* row) const {
    for (int v = 0; v < Vectors; ++v)
      store(row + v * kWidth, activated<Floats>(load(row + v * kWidth), activation_));
  }

  INLINE void write_bits(int64_t row, const Ints (&sums)[Vectors]) const {
    uint64_t bits = 0;
    UNROLL for (int v = 0; v < Vectors; ++v) {
      const Ints sum = shift_ ? wrapped(sums[v]) : sums[v];
      const uint32_t inside = above(load_ints(high_ + v * kWidth), sum) & ~above(load_ints(low_ + v * kWidth), sum);
      bits |= static_cast<uint64_t>(inside) << (v * kWidth);
    }
    bits ^= flip_;
    if (width_ < 64) bits &= (uint64_t{1} << width_) - 1;
    std::memcpy(sink_.bits + row * sink_.stride + begin_ / 8, &bits, static_cast<size_t>((width_ + 7) / 8));
  }

  const Sink& sink_;
  const int64_t begin_, width_;
  const int32_t activation_;
  const float *scale_ = nullptr, *bias_ = nullptr;
  const int32_t *low_ = nullptr, *high_ = nullptr;
  uint64_t flip_ = 0;
  int shift_ = 0;
  float back_ = 0.0f, reach_ = 0.0f;
  float floats_[2][kWide];
  int32_t ints_[2][kWide];
};

}  // namespace
}  // namespace proxbit
