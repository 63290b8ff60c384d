// One pass over rows for all that follows a layer, instead of one for each.
#include "follow.hpp"

#include <algorithm>

#include "activation.hpp"
#include "backend.hpp"
#include "binary.hpp"
#include "parallel.hpp"

namespace proxbit {
namespace {

// Comparisons that leave NaN as it is, as torch does.
inline float clamped(float y, int32_t activation) {
  if (activation == PB_RELU) return y < 0.0f ? 0.0f : y;
  if (activation == PB_HARDTANH) return y < -1.0f ? -1.0f : y > 1.0f ? 1.0f : y;
  return y;
}

template <bool kNorm, bool kContracted, bool kOther, int32_t kActivation>
__attribute__((always_inline)) inline void row_of(const pb_following& how, float* y, const float* other, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    float value = y[i];
    if (kNorm) value = kContracted ? __builtin_fmaf(value, how.gain[i], how.shift[i]) : value * how.gain[i] + how.shift[i];
    if (kOther) value = value + other[i];
    y[i] = clamped(value, kActivation);
  }
}

template <bool kNorm, bool kContracted, bool kOther>
__attribute__((always_inline)) inline void row_with(const pb_following& how, float* y, const float* other, int64_t width) {
  switch (how.activation) {
    case PB_RELU: return row_of<kNorm, kContracted, kOther, PB_RELU>(how, y, other, width);
    case PB_HARDTANH: return row_of<kNorm, kContracted, kOther, PB_HARDTANH>(how, y, other, width);
    default: return row_of<kNorm, kContracted, kOther, PB_IDENTITY>(how, y, other, width);
  }
}

__attribute__((always_inline)) inline void rows_by(const pb_following& how, float* y, const float* other, int64_t rows,
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

void plain_rows(const pb_following& how, float* y, const float* other, int64_t rows, int64_t width) {
  rows_by(how, y, other, rows, width);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"))) void wide_rows(const pb_following& how, float* y, const float* other, int64_t rows,
                                                   int64_t width) {
  rows_by(how, y, other, rows, width);
}

bool is_wide() {
  static const bool wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return wide;
}
#else
void wide_rows(const pb_following& how, float* y, const float* other, int64_t rows, int64_t width) {
  rows_by(how, y, other, rows, width);
}

bool is_wide() { return false; }
#endif

// As many rows as stay in an L1 cache between the pass and the signs.
constexpr int64_t kFloatsAtOnce = 2048;
constexpr int64_t kFloatsPerThread = 1 << 17;

}  // namespace

bool sound(const pb_following& how) {
  const int32_t activation = how.activation;
  return !how.gain == !how.shift &&
         (activation == PB_IDENTITY || activation == PB_RELU || activation == PB_HARDTANH);
}

void follow_rows(const pb_following& how, float* values, int64_t width, int64_t first, int64_t count) {
  const int64_t row_bytes = (width + 7) / 8, block = std::max<int64_t>(1, kFloatsAtOnce / width);
  const auto pass = is_wide() ? wide_rows : plain_rows;
  for (int64_t r = first, end = first + count; r < end; r += block) {
    const int64_t some = std::min(block, end - r);
    float* y = values + r * width;
    pass(how, y, how.other ? how.other + r * width : nullptr, some, width);
    if (!how.bits) continue;
    for (int64_t i = 0; i < some; ++i)
      backend().binary.sign_row(y + i * width, width, nullptr, how.bits + (r + i) * row_bytes, row_bytes);
  }
}

void follow(const pb_following& how, float* values, int64_t rows, int64_t width, int threads) {
  const int64_t parts = rows * width < kFloatsPerThread ? 1 : std::min<int64_t>(threads, rows);
  for_parts(parts, threads, [&](int64_t part) {
    const int64_t first = rows * part / parts;
    follow_rows(how, values, width, first, rows * (part + 1) / parts - first);
  });
}

}  // namespace proxbit

using namespace proxbit;

int pb_follow(float* values, int64_t rows, int64_t width, const pb_following* how, int threads) {
  if (!values || rows < 0 || width < 1 || threads < 1) return PB_BAD_ARGUMENT;
  if (!how || !sound(*how) || !countable({rows, width})) return PB_BAD_ARGUMENT;
  follow(*how, values, rows, width, threads);
  return PB_OK;
}
