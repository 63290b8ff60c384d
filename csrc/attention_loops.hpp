// The loops behind attention_*.cpp. The order of every sum is written down (proxbit.h), and each product is added
// with one rounding: so all instruction sets give the same bits, and those of a torch that sums in this order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#if defined(__FMA__) && !defined(PROXBIT_EMULATED_WIDTH)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of what GCC's own header leaves undefined on purpose
#endif
#include <immintrin.h>
#endif

#include "attention.hpp"
#include "floats.hpp"
#include "scratch.hpp"
#include "sizes.hpp"

namespace proxbit {
namespace {  // a copy for each file: they are compiled for different instruction sets

#if defined(__AVX512F__) && !defined(PROXBIT_EMULATED_WIDTH)
INLINE Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Floats lesser(Floats a, Floats b) { return _mm512_min_ps(a, b); }
INLINE Floats greater(Floats a, Floats b) { return _mm512_max_ps(a, b); }
INLINE Ints floored(Floats v) {
  return reinterpret_cast<Ints>(_mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
}
constexpr int kMatrixRows = 8, kFlatVectors = 3, kTallVectors = 4;
#elif defined(__FMA__) && !defined(PROXBIT_EMULATED_WIDTH)
INLINE Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Floats lesser(Floats a, Floats b) { return _mm256_min_ps(a, b); }
INLINE Floats greater(Floats a, Floats b) { return _mm256_max_ps(a, b); }
INLINE Ints floored(Floats v) { return reinterpret_cast<Ints>(_mm256_cvttps_epi32(_mm256_floor_ps(v))); }
constexpr int kMatrixRows = 4, kFlatVectors = 3, kTallVectors = 2;
#else
INLINE Floats fused(Floats a, Floats b, Floats c) {
  for (int64_t i = 0; i < kWidth; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}
INLINE Floats lesser(Floats a, Floats b) { return a < b ? a : b; }  // b where one is not a number
INLINE Floats greater(Floats a, Floats b) { return a > b ? a : b; }
INLINE Ints floored(Floats v) {
  const Ints n = __builtin_convertvector(v, Ints);
  return n + (__builtin_convertvector(n, Floats) > v);
}
constexpr int kMatrixRows = 4, kFlatVectors = 2, kTallVectors = 2;
#endif

// A product of matrices: c = a b, or c += a b. Columns are whole vectors.
struct Matrices {
  const float* a;
  int64_t a_row;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t depth;
  bool adds;
};

template <int kRows, int kVectors>
INLINE void block(const Matrices& p, int64_t row, int64_t column) {
  Floats sums[kRows][kVectors] = {};
  const float *a = p.a + row * p.a_row, *b = p.b + column;
  for (int64_t i = 0; i < p.depth; ++i, b += p.b_row) {
    Floats right[kVectors];
    UNROLL for (int v = 0; v < kVectors; ++v) right[v] = load(b + v * kWidth);
    UNROLL for (int r = 0; r < kRows; ++r) {
      const Floats left = all(a[r * p.a_row + i]);
      UNROLL for (int v = 0; v < kVectors; ++v) sums[r][v] = fused(left, right[v], sums[r][v]);
    }
  }
  float* c = p.c + row * p.c_row + column;
  UNROLL for (int r = 0; r < kRows; ++r) {
    UNROLL for (int v = 0; v < kVectors; ++v) {
      float* to = c + r * p.c_row + v * kWidth;
      store(to, p.adds ? load(to) + sums[r][v] : sums[r][v]);
    }
  }
}

template <int kRows, int kVectors>
void blocks(const Matrices& p, int64_t row, int64_t columns) {
  int64_t at = 0;
  for (; at + kVectors * kWidth <= columns; at += kVectors * kWidth) block<kRows, kVectors>(p, row, at);
  for (; at < columns; at += kWidth) block<kRows, 1>(p, row, at);
}

template <int kVectors>
void multiply_by(const Matrices& p, int64_t rows, int64_t columns) {
  constexpr int kRows = kMatrixRows * kFlatVectors / kVectors;
  int64_t row = 0;
  for (; row + kRows <= rows; row += kRows) blocks<kRows, kVectors>(p, row, columns);
  if (row + kRows / 2 <= rows) {
    blocks<kRows / 2, kVectors>(p, row, columns);
    row += kRows / 2;
  }
  for (; row < rows; ++row) blocks<1, kVectors>(p, row, columns);
}

// exp as torch approximates it in its attention, within 20 units in the last place: 2^n times a polynomial of the
// rest, below the smallest normal number 0. Not a number is taken for the largest.
INLINE Floats exponential(Floats x) {
  constexpr float kLeast = -87.3365402f, kMost = 88.7228394f;
  const Ints under = x < kLeast;
  const Floats s = greater(lesser(x, all(kMost)), all(kLeast));
  const Ints n = floored(fused(s, all(1.44269502f), all(0.5f)));
  const Floats r = fused(__builtin_convertvector(n, Floats), all(-0.693147182f), s);
  Floats p = fused(r, all(0.00828929059f), all(0.0418978221f));
  p = fused(r, p, all(0.166676521f));
  p = fused(r, p, all(0.499991506f));
  p = fused(r, p, all(0.999999701f));
  p = fused(r, p, all(1.0f));
  const Floats half = reinterpret_cast<Floats>((n + 126) << 23);
  return p * (under ? Floats{} : half) * 2.0f;
}

// One value is added to each lane in turn; then halves of the lanes are added until one is left.
template <int kLanes>
float sum_of(const float* x, int64_t n) {
  float sums[kLanes] = {};
  for (int64_t i = 0; i < n; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += x[i + j];
  for (int64_t half = kLanes / 2; half; half /= 2)
    for (int64_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  return sums[0];
}

// Scales a row; gives its largest value, or not a number if one of them is none.
float scaled_top(float* x, int64_t n, float scale) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  Floats tops = all(-std::numeric_limits<float>::infinity());
  Ints broken{};
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Floats v = load(x + i) * scale;
    store(x + i, v);
    broken |= v != v;
    tops = greater(v, tops);
  }
  float top = tops[0];
  for (int64_t j = 0; j < kWidth; ++j) top = broken[j] || top != top ? kNone : std::max(top, tops[j]);
  for (; i < n; ++i) {
    x[i] *= scale;
    top = x[i] <= top ? top : x[i] > top ? x[i] : kNone;
  }
  return top;
}

// A row of products becomes exp(scale * x - the largest of them); gives their sum. Values behind the last whole
// group of lanes are taken one by one.
float soften(float* x, int64_t n, float scale, int64_t lanes) {
  const int64_t whole = n / lanes * lanes;
  const float top = scaled_top(x, n, scale);
  each(x, x, whole, [=](Floats v) { return exponential(v - top); });
  float sum = lanes == 16 ? sum_of<16>(x, whole) : sum_of<8>(x, whole);
  for (int64_t i = whole; i < n; ++i) sum += x[i] = std::exp(x[i] - top);
  return sum;
}

// Rows become columns, in squares that stay in the first cache; behind the last row follow zeros.
void turn(const float* from, int64_t row, int64_t rows, int64_t columns, float* to, int64_t to_row) {
  for (int64_t r = 0; r < to_row; r += 16) {
    for (int64_t c = 0; c < columns; c += 16) {
      for (int64_t i = r; i < std::min(r + 16, to_row); ++i)
        for (int64_t j = c; j < c + 16; ++j) to[j * to_row + i] = i < rows ? from[i * row + j] : 0.0f;
    }
  }
}

constexpr int64_t kQueriesAtOnce = 3 * 8;

void attend(const Head& head) {
  thread_local Scratch scratch;
  const int64_t wide = round_up(head.keys, kWidth);
  float* turned = scratch.take<float>(static_cast<size_t>((head.width + kQueriesAtOnce) * wide));
  float *scores = turned + head.width * wide, inverse[kQueriesAtOnce];
  turn(head.k, head.k_row, head.keys, head.width, turned, wide);
  for (int64_t first = 0; first < head.queries; first += kQueriesAtOnce) {
    const int64_t rows = std::min(kQueriesAtOnce, head.queries - first);
    const float* q = head.q + first * head.q_row;
    float* out = head.out + first * head.out_row;
    multiply_by<kFlatVectors>({q, head.q_row, turned, wide, scores, wide, head.width, false}, rows, wide);
    for (int64_t r = 0; r < rows; ++r) inverse[r] = 1.0f / soften(scores + r * wide, head.keys, head.scale, head.lanes);
    for (int64_t i = 0; i < head.keys; i += head.run) {
      const int64_t depth = std::min(head.run, head.keys - i);
      multiply_by<kTallVectors>({scores + i, wide, head.v + i * head.v_row, head.v_row, out, head.out_row, depth, i > 0}, rows,
                             head.width);
    }
    for (int64_t r = 0; r < rows; ++r)
      each(out + r * head.out_row, out + r * head.out_row, head.width, [&](Floats v) { return v * inverse[r]; });
  }
}

constexpr AttentionKernels kAttentionLoops = {attend};

}  // namespace
}  // namespace proxbit
