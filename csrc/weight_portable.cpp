// The kernels in plain C++: the measure for the others, and for machines without AVX2.
#include "activation.hpp"
#include "weight_rows.hpp"

namespace proxbit {
namespace {

template <class Element>
struct Lanes {
  static constexpr int count = kLaneBytes / sizeof(Element);
  struct value {
    Element v[count];
  };

  static value zero() { return value{}; }
  static value get(const uint8_t* from) {
    value a;
    std::memcpy(a.v, from, kLaneBytes);
    return a;
  }
  static void put(uint8_t* to, value a) { std::memcpy(to, a.v, kLaneBytes); }
  static value add(value a, value b) {
    for (int i = 0; i < count; ++i) a.v[i] = static_cast<Element>(a.v[i] + b.v[i]);
    return a;
  }
  static value negative(value a) {
    for (int i = 0; i < count; ++i) a.v[i] = static_cast<Element>(-a.v[i]);
    return a;
  }
};

struct Floats : Lanes<float> {
  static value load(const float* from) {
    value a;
    std::memcpy(a.v, from, kLaneBytes);
    return a;
  }
  static void store(float* to, value a) { std::memcpy(to, a.v, kLaneBytes); }
  static value multiply(value a, value b) {
    for (int i = 0; i < count; ++i) a.v[i] *= b.v[i];
    return a;
  }
  static value from_int32(const int32_t* from) {
    value a;
    for (int i = 0; i < count; ++i) a.v[i] = static_cast<float>(from[i]);
    return a;
  }
  static void put_int16(uint8_t* to, value a) {
    int16_t rounded[count];
    for (int i = 0; i < count; ++i) {
      const float x = a.v[i] == a.v[i] ? a.v[i] : 0.0f;  // rows with NaN are computed again
      rounded[i] = static_cast<int16_t>(nearest(x));
    }
    std::memcpy(to, rounded, sizeof rounded);
  }
  static void transpose(value v[8]) {
    for (int i = 0; i < 8; ++i) {
      for (int j = 0; j < i; ++j) {
        const float held = v[i].v[j];
        v[i].v[j] = v[j].v[i];
        v[j].v[i] = held;
      }
    }
  }
  static void load_transposed(const float* from, int64_t stride, value v[8]) {
    for (int i = 0; i < 8; ++i) v[i] = load(from + i * stride);
    transpose(v);
  }
  static value finish(value sum, value scale, value bias, int32_t activation) {
    for (int i = 0; i < count; ++i) {
      sum.v[i] = activated(sum.v[i] * scale.v[i] + bias.v[i], activation);
    }
    return sum;
  }
};

struct Shorts : Lanes<int16_t> {
  static void widen(const uint8_t* sums, int32_t* totals, bool fresh) {
    const value a = get(sums);
    for (int i = 0; i < count; ++i) totals[i] = (fresh ? 0 : totals[i]) + a.v[i];
  }
};

void exact(const Task& task, uint8_t* memory) { exact_task<Floats>(task, memory); }
void input8(const Task& task, uint8_t* memory) { input8_task<Floats, Shorts>(task, memory); }

void prepare(const float* x, int64_t inputs, int32_t precision, IntegerRow& row) {
  round_row(x, inputs, precision, row);
  if (!row.fits) return;
  for (int64_t k = 0; k < round_up(inputs, kPanelInputs); k += kNibbleInputs) {
    int32_t entries[16] = {};
    for (int j = 0; j < kNibbleInputs; ++j) {
      const int32_t value = row.values[k + j], plus = value > 0 ? value : 0;
      for (int i = 0; i < 16; ++i) entries[i] += i >> j & 1 ? plus : plus - value;
    }
    std::memcpy(row.tables + k / kNibbleInputs * kNibbleBytes, entries, sizeof entries);
  }
}

// How much 32 outputs agree with the row: the sum of |value| over equal signs.
void agreement(const uint8_t* panel, const IntegerRow& row, int64_t bytes, int64_t sums[32]) {
  for (int64_t p = 0; p < kPanelOutputs; ++p) sums[p] = 0;
  for (int64_t b = 0; b < bytes; ++b) {
    int32_t low[16], high[16];
    std::memcpy(low, row.tables + 2 * b * kNibbleBytes, sizeof low);
    std::memcpy(high, row.tables + (2 * b + 1) * kNibbleBytes, sizeof high);
    const uint8_t* bytes = panel + b * kPanelOutputs;
    for (int64_t p = 0; p < kPanelOutputs; ++p) sums[p] += low[bytes[p] & 15] + high[bytes[p] >> 4];
  }
}

int64_t panel_place(int64_t output) { return output; }

void planes(const Task& task, const IntegerRow& row, int32_t, double*) {
  const int64_t size = panel_bytes(task.inputs);
  for (int64_t first = task.first; first < task.last; first += kPanelOutputs) {
    int64_t sums[kPanelOutputs];
    agreement(task.panels + first / kPanelOutputs * size, row, size / kPanelOutputs, sums);
    for (int64_t n = first; n < task.last && n < first + kPanelOutputs; ++n) {
      const double twice = 2.0 * static_cast<double>(sums[n - first]);
      const float sum = static_cast<float>((twice - row.magnitude) * row.quantum);
      const float bias = task.bias ? task.bias[n] : 0.0f;
      task.out[n] = activated(sum * task.scale[n] + bias, task.activation);
    }
  }
}

}  // namespace

extern const WeightKernels portable_weight;
const WeightKernels portable_weight = {panel_place, exact, input8, prepare, planes};

}  // namespace proxbit
