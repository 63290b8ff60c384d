// The kernels for AVX2.
#include <immintrin.h>

#include "activation.hpp"
#include "weight_planes_avx2.hpp"
#include "weight_rows.hpp"

namespace proxbit {
namespace {

struct Floats {
  using value = __m256;

  static value zero() { return _mm256_setzero_ps(); }
  static value load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, value a) { _mm256_storeu_ps(to, a); }
  static value get(const uint8_t* from) {
    return _mm256_load_ps(reinterpret_cast<const float*>(from));
  }
  static void put(uint8_t* to, value a) { _mm256_store_ps(reinterpret_cast<float*>(to), a); }
  static value add(value a, value b) { return _mm256_add_ps(a, b); }
  static value multiply(value a, value b) { return _mm256_mul_ps(a, b); }
  static value negative(value a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  // Else gcc reorders the additions of neighbours and spills.
  static void keep(value& a) { asm volatile("" : "+x"(a)); }
  static value from_int32(const int32_t* from) {
    return _mm256_cvtepi32_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void put_int16(uint8_t* to, value a) {
    const __m256i wide = _mm256_cvtps_epi32(a);
    const __m128i halves[2] = {_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1)};
    _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(halves[0], halves[1]));
  }
  static void transpose(value v[8]);
  static value finish(value sum, value scale, value bias, int32_t activation) {
    return activated<value>(sum * scale + bias, activation);
  }
};

inline void Floats::transpose(value v[8]) {
  value pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
    }
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

struct Shorts {
  using value = __m256i;

  static value zero() { return _mm256_setzero_si256(); }
  static value get(const uint8_t* from) {
    return _mm256_load_si256(reinterpret_cast<const value*>(from));
  }
  static void put(uint8_t* to, value a) { _mm256_store_si256(reinterpret_cast<value*>(to), a); }
  static value add(value a, value b) { return _mm256_add_epi16(a, b); }
  static value negative(value a) { return _mm256_sub_epi16(zero(), a); }
  static void keep(value& a) { asm volatile("" : "+x"(a)); }
  static void widen(const uint8_t* sums, int32_t* totals, bool fresh) {
    const value a = get(sums);
    value* to = reinterpret_cast<value*>(totals);
    const value low = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(a));
    const value high = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(a, 1));
    to[0] = fresh ? low : _mm256_add_epi32(to[0], low);
    to[1] = fresh ? high : _mm256_add_epi32(to[1], high);
  }
};

void exact(const Task& task, uint8_t* memory) { exact_task<Floats>(task, memory); }
void input8(const Task& task, uint8_t* memory) { input8_task<Floats, Shorts>(task, memory); }

void prepare(const float* x, int64_t inputs, int32_t precision, IntegerRow& row) {
  round_row(x, inputs, precision, row);
  if (row.fits) fill_nibbles(row, inputs);
}

// From 32 sums to 32 outputs, or to those that exist.
void finish_panel(const Task& task, int64_t first, const float sums[kPanelOutputs]) {
  for (int64_t n = first; n < task.last && n < first + kPanelOutputs; n += 8) {
    const int64_t some = task.last - n;
    const auto scale = load_some<Floats>(task.scale + n, some);
    const auto bias = task.bias ? load_some<Floats>(task.bias + n, some) : Floats::zero();
    const auto y = Floats::finish(Floats::load(sums + n - first), scale, bias, task.activation);
    store_some<Floats>(task.out + n, some, y);
  }
}

template <int count>
void planes_of(const Task& task, const IntegerRow& row) {
  for (int64_t first = task.first; first < task.last; first += kPanelOutputs) {
    alignas(32) float sums[kPanelOutputs];
    const uint8_t* panel = task.panels + first / kPanelOutputs * panel_bytes(task.inputs);
    sum_panel<count>(panel, row, ceil_div(task.inputs, 8), sums);
    finish_panel(task, first, sums);
  }
}

void planes(const Task& task, const IntegerRow& row, int32_t precision) {
  if (precision == PB_INPUT8) planes_of<2>(task, row);
  else planes_of<3>(task, row);
}

}  // namespace

const Kernels& avx2_weight_kernels() {
  static const Kernels kernels{exact, input8, prepare, planes};
  return kernels;
}

}  // namespace proxbit
