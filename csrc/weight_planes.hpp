// Few rows in plain C++: the tables are looked up one output at a time.
#pragma once

#include <cstring>

#include "activation.hpp"
#include "weight_quantum.hpp"

namespace proxbit {
namespace {

void fill(IntegerRow& row, int64_t inputs, int32_t) {
  for (int64_t k = 0; k < round_up(inputs, kPanelInputs); k += kNibbleInputs) {
    int32_t entries[16] = {};
    for (int j = 0; j < kNibbleInputs; ++j) {
      const int32_t value = row.values[k + j], plus = value > 0 ? value : 0;
      for (int i = 0; i < 16; ++i) entries[i] += i >> j & 1 ? plus : plus - value;
    }
    std::memcpy(row.tables + k / kNibbleInputs * kNibbleBytes, entries, sizeof entries);
  }
}

void prepare(const float* x, int64_t inputs, int32_t precision, IntegerRow& row) {
  round_row(x, inputs, precision, row);
  if (row.fits) fill(row, inputs, precision);
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
}  // namespace proxbit
