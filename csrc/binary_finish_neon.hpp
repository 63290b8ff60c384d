// From counts of bits that differ to one row of the output.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "activation.hpp"
#include "binary.hpp"
#include "binary_signs_neon.hpp"
#include "floats.hpp"

namespace proxbit {
namespace {

// Floats, floats behind a register that wraps, or bits.
enum class Out { values, wrapped, bits };

template <class T>
inline T load_four(const void* from, int64_t count) {
  T four{};
  std::memcpy(&four, from, count < 4 ? static_cast<size_t>(count) * 4 : sizeof four);
  return four;
}

// What all outputs of a layer have in common.
class Finish {
 public:
  Finish(const Product& product, const Sink& sink)
      : product_(product), sink_(sink), most_(static_cast<int32_t>(16 * product.row_bytes - product.offset)) {
    if (!product.register_bits) return;
    shift_ = 32 - product.register_bits;
    back_ = -product.slope;
    const double half = 1 << (product.register_bits - 1);
    reach_ = static_cast<float>(static_cast<double>(product.slope) * half);
  }

  // `count` outputs from output `first` on, which is a multiple of 64.
  template <Out out>
  void write(int64_t row, int64_t first, int64_t count, const uint16_t* different) const {
    if constexpr (out == Out::bits) {
      write_bits(row, first, count, different);
    } else {
      float* to = sink_.values + row * sink_.stride + first;
      for (int64_t i = 0; i < count; i += 4) {
        const Floats y = value<out>(first + i, count - i, sums(different + i));
        store(to + i, y, count - i < 4 ? count - i : 4);
      }
    }
  }

 private:
  Ints sums(const uint16_t* different) const {
    const Ints wide = reinterpret_cast<Ints>(vmovl_u16(vld1_u16(different)));
    return most_ - (wide + wide);
  }
  Ints wrapped(Ints sum) const { return sum << shift_ >> shift_; }

  Floats cyclic(Floats m) const {
    const Floats line = m * back_, upper = line + reach_, lower = line - reach_;
    const Floats middle = m < upper ? m : upper;
    return middle > lower ? middle : lower;
  }

  template <Out out>
  Floats value(int64_t n, int64_t count, Ints sum) const {
    const auto as_floats = [](Ints v) { return __builtin_convertvector(v, Floats); };
    const Floats y = out == Out::wrapped ? cyclic(as_floats(wrapped(sum))) : as_floats(sum);
    const Floats bias = product_.bias ? load_four<Floats>(product_.bias + n, count) : Floats{};
    return activated<Floats>(y * load_four<Floats>(product_.scale + n, count) + bias, product_.activation);
  }

  // Whether four outputs are inside of their bounds, as masks.
  uint32x4_t inside(int64_t n, int64_t count, Ints sum) const {
    if (count <= 0) return vdupq_n_u32(0);
    if (product_.register_bits) sum = wrapped(sum);
    const Ints low = load_four<Ints>(product_.low + n, count), high = load_four<Ints>(product_.high + n, count);
    return reinterpret_cast<uint32x4_t>((low <= sum) & (sum < high));
  }

  void write_bits(int64_t row, int64_t first, int64_t count, const uint16_t* different) const {
    uint8_t bytes[kPanel / 8];
    for (int64_t i = 0; i < count; i += 16) {
      uint32x4_t masks[4];
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t at = i + 4 * j;
        masks[j] = inside(first + at, count - at, sums(different + at));
      }
      put_bits(narrow_masks(masks[0], masks[1], masks[2], masks[3]), bytes + i / 8);
    }
    for (int64_t i = 0; i < count; ++i)
      bytes[i / 8] = static_cast<uint8_t>(bytes[i / 8] ^ (product_.flip[first + i] != 0) << (i % 8));
    std::memcpy(sink_.bits + row * sink_.stride + first / 8, bytes, static_cast<size_t>((count + 7) / 8));
  }

  const Product& product_;
  const Sink& sink_;
  int32_t most_;  // the sum where no bit differs
  int shift_ = 0;
  float back_ = 0.0f, reach_ = 0.0f;
};

}  // namespace
}  // namespace proxbit
