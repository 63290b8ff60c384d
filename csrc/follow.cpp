// What follows a layer in its network, on the rows that it gave: a norm, a sum with other values, an
// activation, the signs. One pass over the memory instead of one for each.
#include <algorithm>
#include <cstdint>

#include "activation.hpp"
#include "backend.hpp"
#include "binary.hpp"
#include "parallel.hpp"

namespace proxbit {
namespace {

struct Following {
  const float* gain;
  const float* shift;
  bool contracted;  // gain * y + shift is rounded once
  int32_t activation;
};

// Comparisons that leave NaN as it is, as torch does.
inline float clamped(float y, int32_t activation) {
  if (activation == PB_RELU) return y < 0.0f ? 0.0f : y;
  if (activation == PB_HARDTANH) return y < -1.0f ? -1.0f : y > 1.0f ? 1.0f : y;
  return y;
}

template <bool kNorm, bool kContracted, bool kOther, int32_t kActivation>
__attribute__((always_inline)) inline void row_of(const Following& how, float* y, const float* other, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    float value = y[i];
    if (kNorm) value = kContracted ? __builtin_fmaf(value, how.gain[i], how.shift[i]) : value * how.gain[i] + how.shift[i];
    if (kOther) value = value + other[i];
    y[i] = clamped(value, kActivation);
  }
}

template <bool kNorm, bool kContracted, bool kOther>
__attribute__((always_inline)) inline void row_with(const Following& how, float* y, const float* other, int64_t width) {
  switch (how.activation) {
    case PB_RELU: return row_of<kNorm, kContracted, kOther, PB_RELU>(how, y, other, width);
    case PB_HARDTANH: return row_of<kNorm, kContracted, kOther, PB_HARDTANH>(how, y, other, width);
    default: return row_of<kNorm, kContracted, kOther, PB_IDENTITY>(how, y, other, width);
  }
}

__attribute__((always_inline)) inline void rows_by(const Following& how, float* y, const float* other, int64_t rows,
                                                   int64_t width) {
  for (int64_t r = 0; r < rows; ++r, y += width) {
    const float* beside = other ? other + r * width : nullptr;
    if (!how.gain) {
      if (beside) row_with<false, false, true>(how, y, beside, width);
      else row_with<false, false, false>(how, y, beside, width);
    } else if (how.contracted) {
      if (beside) row_with<true, true, true>(how, y, beside, width);
      else row_with<true, true, false>(how, y, beside, width);
    } else {
      if (beside) row_with<true, false, true>(how, y, beside, width);
      else row_with<true, false, false>(how, y, beside, width);
    }
  }
}

void plain_rows(const Following& how, float* y, const float* other, int64_t rows, int64_t width) {
  rows_by(how, y, other, rows, width);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"))) void wide_rows(const Following& how, float* y, const float* other, int64_t rows,
                                                   int64_t width) {
  rows_by(how, y, other, rows, width);
}

bool is_wide() {
  static const bool wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return wide;
}
#else
void wide_rows(const Following& how, float* y, const float* other, int64_t rows, int64_t width) {
  rows_by(how, y, other, rows, width);
}

bool is_wide() { return false; }
#endif

// As many rows as stay in an L1 cache between the pass and the signs.
constexpr int64_t kFloatsAtOnce = 2048;
constexpr int64_t kFloatsPerThread = 1 << 18;

}  // namespace
}  // namespace proxbit

using namespace proxbit;

int pb_follow(float* values, int64_t rows, int64_t width, const float* gain, const float* shift, int contracted,
              const float* other, int activation, uint8_t* bits, int threads) {
  if (!values || rows < 0 || width < 1 || !gain != !shift || threads < 1) return PB_BAD_ARGUMENT;
  if (activation != PB_IDENTITY && activation != PB_RELU && activation != PB_HARDTANH) return PB_BAD_ARGUMENT;
  if (!countable({rows, width})) return PB_BAD_ARGUMENT;
  const Following how{gain, shift, contracted != 0, activation};
  const int64_t row_bytes = (width + 7) / 8, block = std::max<int64_t>(1, kFloatsAtOnce / width);
  const int64_t share = std::max<int64_t>(block, (rows + threads - 1) / threads);
  const int team = rows * width < kFloatsPerThread ? 1 : threads;
  const int64_t each = team == 1 ? std::max<int64_t>(rows, 1) : share;
  for_parts((rows + each - 1) / each, team, [&](int64_t part) {
    const int64_t end = std::min(rows, (part + 1) * each);
    for (int64_t r = part * each; r < end; r += block) {
      const int64_t count = std::min(block, end - r);
      float* y = values + r * width;
      (is_wide() ? wide_rows : plain_rows)(how, y, other ? other + r * width : nullptr, count, width);
      if (!bits) continue;
      for (int64_t i = 0; i < count; ++i)
        backend().binary.sign_row(y + i * width, width, nullptr, bits + (r + i) * row_bytes, row_bytes);
    }
  });
  return PB_OK;
}
