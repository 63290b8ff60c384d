// Layers with binary weights and float inputs: layouts, order of sums, and who computes what.
//
// Weights lie in panels of 32 outputs, in each for each 8 inputs a byte of every output: the layout for few rows.
//
// Many rows (weight_rows.hpp). Panels are turned into words, 48 inputs of one output each, once in a call. The same
// inputs of as many rows as a vector has floats become 8 tables of 64 vectors: entry i of table g holds the signed sum of the inputs 6 g .. 6 g + 5, signs from the bits of i, one row per lane.
// An output then costs one addition per table, for 48 products. Order of the sums, in float32:
//   entry = ((+-a0 +- a1) +- a2) + ((+-a3 +- a4) +- a5)
//   sum   = (...((0 + t0) + t1) + ...) one table after the other, inputs behind the last being 0.
//
// Few rows (weight_planes_avx2.hpp). The inputs of a row become integers of 23 bits, 4 of them a
// table of 16 sums of 24 bits, and the digits of the sums tables for byte shuffles. Integer sums
// are exact in any order; what is lost is the rounding of the inputs, less than 2^-22 of the
// largest of the row. A row whose largest input towers above the others, or is not finite, takes
// the way of many.
//
// INPUT8: inputs are rounded to 8 bits, q = round(127 x / max|x|) for each row, however many there
// are: an error of at most max|x| / 254 per input, about 0.0023 max|x| sqrt(inputs) in a sum. Sums
// of q are exact; rows that are not finite or nearly 0 are computed as EXACT.
//
// Everywhere: y = activation(sum * scale + bias) in float32, no fused multiply-add.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proxbit.h"
#include "sizes.hpp"

namespace proxbit {

constexpr int64_t kGroupInputs = 6;                  // one table of many rows
constexpr int64_t kBlockGroups = 8;                  // tables at once: at most a small L1 cache
constexpr int64_t kBlockInputs = 48;
constexpr int64_t kBlockBytes = 6;                   // of a word of one output
constexpr int64_t kTableEntries = 64;
constexpr int64_t kMostLanes = 16;                   // floats in the widest vector
constexpr int64_t kPanelOutputs = 32;                // one vector of bytes, few rows
constexpr int64_t kPanelInputs = 16;                 // they are taken 16 at a time
constexpr int64_t kNibbleInputs = 4;                 // one table of few rows
constexpr int64_t kNibbleBytes = 64;                 // room for one such table
constexpr int64_t kMostInputs = int64_t{1} << 24;    // so that no integer sum overflows
constexpr int64_t kMostOutputs = int64_t{1} << 31;

// Of one panel; its outputs are in an order of the backend.
static constexpr int64_t panel_bytes(int64_t inputs) {
  return round_up(inputs, kPanelInputs) / 8 * kPanelOutputs;
}

static constexpr int64_t group_bytes(int64_t outputs, int64_t inputs) {
  return ceil_div(outputs, kPanelOutputs) * panel_bytes(inputs);
}

// One group of one layer, some of its outputs, some rows.
struct Task {
  int64_t inputs;
  int64_t outputs;         // of the group
  int64_t first, last;     // the outputs to compute
  const uint8_t* panels;
  const uint64_t* words;   // for many rows: for each 48 inputs a word of every output
  int64_t word_stride;     // outputs, in whole panels
  const float* scale;
  const float* bias;       // or null
  int32_t activation;
  const float* x;
  int64_t row_stride;
  int64_t rows;
  const float* quanta;     // INPUT8: what 1 stands for in each row, where inputs are integers already; or null
  int64_t quanta_stride;   // 0: the same for every row
  float* out;              // where output 0 of row 0 goes
  int64_t out_stride;
};

// One row as integers, and as tables of their sums.
struct IntegerRow {
  int32_t* values;         // inputs, rounded up to a multiple of kPanelInputs with zeros
  uint8_t* tables;         // kNibbleBytes for each 4 inputs, as the instruction set likes them
  double magnitude;        // the sum of |value|
  double quantum;          // what a value of 1 stands for
  bool fits;               // false: take the way of many rows
};

// The work memory that the two kernels for many rows want, in bytes.
static constexpr int64_t rows_memory(int64_t bytes, int64_t outputs) {
  return kBlockGroups * kTableEntries * bytes + kBlockInputs * bytes + round_up(outputs, kMostLanes) * 3 * bytes;
}

struct WeightKernels {
  // Where an output lies in its panel.
  int64_t (*panel_place)(int64_t output);
  // Of the vectors for many rows.
  int64_t vector_bytes;
  // At most as many rows as floats in a vector.
  void (*exact)(const Task& task, uint8_t* memory);
  // At most as many rows as int16 in a vector.
  void (*input8)(const Task& task, uint8_t* memory);
  // From the inputs of one row to integers and tables, and from the integers to the tables.
  void (*prepare)(const float* x, int64_t inputs, int32_t precision, IntegerRow& row);
  void (*fill)(IntegerRow& row, int64_t inputs, int32_t precision);
  // One prepared row; task.first is a multiple of kPanelOutputs. totals: memory for each output,
  // rounded up to whole panels.
  void (*planes)(const Task& task, const IntegerRow& row, int32_t precision, double* totals);
};

}  // namespace proxbit
