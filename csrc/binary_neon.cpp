// Binary times binary with NEON: xor, and a popcount of every byte.
//
// A vector holds one byte of 16 outputs and meets the same byte of a row in all lanes, so each lane sums up
// the bits that differ for an output of its own. 31 bytes differ in at most 248 bits; then the sums go on in
// 16 bits. A register of 8 bits or fewer lets them wrap around instead.
#include <arm_neon.h>

#include <algorithm>

#include "binary.hpp"
#include "binary_finish_neon.hpp"
#include "binary_signs_neon.hpp"

namespace proxbit {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kTile = 4;   // rows that share one pass over a panel
constexpr int64_t kSafe = 31;  // bytes until a sum could pass 255

// The outputs of a panel side by side, the last panel only as wide as it must be.
inline int64_t panel_width(int64_t outputs, int64_t panel) {
  return std::min(kPanel, round_up(outputs, kLanes) - panel * kPanel);
}

int64_t bytes_of(int64_t outputs, int64_t row_bytes) { return round_up(outputs, kLanes) * row_bytes; }

int64_t place_of(int64_t outputs, int64_t row_bytes, int64_t output, int64_t byte) {
  const int64_t panel = output / kPanel;
  return panel * kPanel * row_bytes + byte * panel_width(outputs, panel) + output % kPanel;
}

// Adds the bits in which `rows` rows differ from 16 * vectors outputs, over some bytes.
template <int rows, int vectors>
inline void count(const uint8_t* row, int64_t row_bytes, const uint8_t* panel, int64_t bytes,
                  uint16_t (*different)[kPanel]) {
  uint8x16_t sums[rows][vectors];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[r][v] = vdupq_n_u8(0);
  for (int64_t b = 0; b < bytes; ++b, panel += vectors * kLanes) {
    uint8x16_t weights[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) weights[v] = vld1q_u8(panel + v * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const uint8x16_t byte = vld1q_dup_u8(row + r * row_bytes + b);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[r][v] = vaddq_u8(sums[r][v], vcntq_u8(veorq_u8(byte, weights[v])));
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < vectors; ++v) {
      uint16_t* to = different[r] + v * kLanes;
      vst1q_u16(to, vaddw_u8(vld1q_u16(to), vget_low_u8(sums[r][v])));
      vst1q_u16(to + 8, vaddw_high_u8(vld1q_u16(to + 8), sums[r][v]));
    }
}

// One panel against all rows.
template <int rows, int vectors, Out out>
void multiply_rows(const Product& product, const uint8_t* row, int64_t first_row, int64_t panel, const Finish& finish) {
  alignas(16) uint16_t different[rows][kPanel] = {};
  const uint8_t* weights = product.panels + panel * kPanel * product.row_bytes;
  const bool wraps = product.register_bits && product.register_bits <= 8;
  const int64_t at_once = wraps ? product.row_bytes : kSafe;
  for (int64_t b = 0; b < product.row_bytes; b += at_once) {
    count<rows, vectors>(row + b, product.row_bytes, weights + b * vectors * kLanes,
                         std::min(at_once, product.row_bytes - b), different);
  }
  const int64_t first = panel * kPanel, width = std::min(kPanel, product.outputs - first);
  for (int r = 0; r < rows; ++r) finish.write<out>(first_row + r, first, width, different[r]);
}

template <int vectors, Out out>
void multiply_panel(const Product& product, const uint8_t* rows, int64_t count, int64_t panel, const Finish& finish) {
  int64_t r = 0;
  for (; r + kTile <= count; r += kTile)
    multiply_rows<kTile, vectors, out>(product, rows + r * product.row_bytes, r, panel, finish);
  for (; r < count; ++r) multiply_rows<1, vectors, out>(product, rows + r * product.row_bytes, r, panel, finish);
}

template <Out out>
void multiply_into(const Product& product, const uint8_t* rows, int64_t count, int64_t first, int64_t last,
                   const Sink& sink) {
  const Finish finish(product, sink);
  for (int64_t p = first; p < last; ++p) {
    switch (panel_width(product.outputs, p) / kLanes) {
      case 1: multiply_panel<1, out>(product, rows, count, p, finish); break;
      case 2: multiply_panel<2, out>(product, rows, count, p, finish); break;
      case 3: multiply_panel<3, out>(product, rows, count, p, finish); break;
      default: multiply_panel<4, out>(product, rows, count, p, finish);
    }
  }
}

void multiply(const Product& product, const uint8_t* rows, int64_t count, int64_t first, int64_t last,
              const Sink& sink) {
  if (sink.bits) return multiply_into<Out::bits>(product, rows, count, first, last, sink);
  if (product.register_bits) return multiply_into<Out::wrapped>(product, rows, count, first, last, sink);
  multiply_into<Out::values>(product, rows, count, first, last, sink);
}

}  // namespace

extern const BinaryKernels neon_binary;
const BinaryKernels neon_binary = {1, kTile, 1, {bytes_of, place_of}, sign_row, sign_pixels, multiply, nullptr, nullptr};

}  // namespace proxbit
