// Binary times binary by counting bits: xor, popcount and addition on words of 32 bits, an output per lane.
//
// Outputs lie in panels of four vectors, the last ones in narrow panels of one (two, where a vector has four
// lanes: then bits fill whole bytes). A panel holds one word of each of its outputs after the other. Four
// rows share one pass over a panel: their sums, the weights and one word of a row stay in registers.
#pragma once

#include "binary_finish.hpp"
#include "binary_signs.hpp"

namespace proxbit {
namespace {

constexpr int64_t kWord = 4;  // bytes
constexpr int64_t kTile = 4;  // rows
constexpr int kWideVectors = 4, kNarrowVectors = kEight;
constexpr int64_t kWidePanel = kWideVectors * kWidth, kNarrowPanel = kNarrowVectors * kWidth;
static_assert(kPanel % kWidePanel == 0, "work is cut between panels");

int64_t panels_size(int64_t outputs, int64_t row_bytes) { return round_up(outputs, kNarrowPanel) * row_bytes; }

// The first output of the panel of an output, and how many it holds.
struct PanelOf {
  int64_t begin, width;

  PanelOf(int64_t outputs, int64_t output) {
    width = output < outputs / kWidePanel * kWidePanel ? kWidePanel : kNarrowPanel;
    begin = output / width * width;
  }
};

int64_t place_of(int64_t outputs, int64_t row_bytes, int64_t output, int64_t byte) {
  const PanelOf panel(outputs, output);
  return panel.begin * row_bytes + (byte / kWord * panel.width + output - panel.begin) * kWord + byte % kWord;
}

INLINE Ints broadcast(const uint8_t* word) {
  int32_t value;
  std::memcpy(&value, word, kWord);
  return all(value);
}

// One panel with `Rows` rows.
template <int Rows, int Vectors, Out out>
INLINE void multiply_tile(const Product& product, const uint8_t* weights, const uint8_t* rows, int64_t row,
                          const Columns<Vectors, out>& columns) {
  Ints different[Rows][Vectors] = {};
  for (int64_t b = 0; b < product.row_bytes; b += kWord, weights += Vectors * sizeof(Ints)) {
    Ints w[Vectors];
    UNROLL for (int v = 0; v < Vectors; ++v) w[v] = load_ints(weights + v * sizeof(Ints));
    UNROLL for (int r = 0; r < Rows; ++r) {
      const Ints word = broadcast(rows + r * product.row_bytes + b);
      UNROLL for (int v = 0; v < Vectors; ++v) different[r][v] += popcount(word ^ w[v]);
    }
  }
  const int32_t most = static_cast<int32_t>(16 * product.row_bytes - product.offset);
  UNROLL for (int r = 0; r < Rows; ++r) {
    Ints sums[Vectors];
    UNROLL for (int v = 0; v < Vectors; ++v) sums[v] = most - (different[r][v] + different[r][v]);
    columns.write(row + r, sums);
  }
}

template <int Vectors, Out out>
void multiply_panel(const Product& product, const uint8_t* rows, int64_t count, int64_t begin, const Sink& sink) {
  const Columns<Vectors, out> columns(product, begin, sink);
  const uint8_t* weights = product.panels + begin * product.row_bytes;
  int64_t r = 0;
  for (; r + kTile <= count; r += kTile)
    multiply_tile<kTile>(product, weights, rows + r * product.row_bytes, r, columns);
  if (r < count && count >= kTile) {  // the last tile overlaps the one before
    r = count - kTile;
    multiply_tile<kTile>(product, weights, rows + r * product.row_bytes, r, columns);
    return;
  }
  for (; r < count; ++r) multiply_tile<1>(product, weights, rows + r * product.row_bytes, r, columns);
}

template <Out out>
void multiply_into(const Product& product, const uint8_t* rows, int64_t count, int64_t first, int64_t last,
                   const Sink& sink) {
  const int64_t end = std::min(last * kPanel, product.outputs);
  int64_t n = first * kPanel;
  for (; n + kWidePanel <= end; n += kWidePanel)
    multiply_panel<kWideVectors, out>(product, rows, count, n, sink);
  for (; n < end; n += kNarrowPanel) multiply_panel<kNarrowVectors, out>(product, rows, count, n, sink);
}

void multiply(const Product& product, const uint8_t* rows, int64_t count, int64_t first, int64_t last,
              const Sink& sink) {
  if (sink.bits) return multiply_into<Out::bits>(product, rows, count, first, last, sink);
  if (product.register_bits) return multiply_into<Out::wrapped>(product, rows, count, first, last, sink);
  multiply_into<Out::values>(product, rows, count, first, last, sink);
}

constexpr BinaryKernels kBinaryWords = {
    kWord, kTile, 1, {panels_size, place_of}, sign_row, sign_pixels, multiply, nullptr, nullptr};

}  // namespace
}  // namespace proxbit
