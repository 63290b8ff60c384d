// A convolution whose windows share their tables.
//
// Two neighbours of the output see two pixels of the input at each position of the window, always the
// same distance apart. So one table per pair of such pixels serves every window that meets the pair:
// three lines and more than one column of them, where rows of bits would need a table each time.
#pragma once

#include <algorithm>

#include "binary.hpp"
#include "binary_tiles_avx2.hpp"
#include "scratch.hpp"

namespace proxbit {
namespace {

// Whether the windows of a line are neighbours, fill whole steps of three nibbles, and are so short that
// the nibbles of a panel stay in L1 beside the tables: longer ones are faster as rows.
inline bool can_slide(const pb_window& w, int64_t pixel_bytes, int64_t out_width) {
  constexpr int64_t kLongest = 160;
  return w.dilation_w == 1 && out_width >= kTile && w.kernel_w * pixel_bytes % kStep == 0 &&
         w.kernel_h * w.kernel_w * pixel_bytes <= kLongest;
}

// Tables of the pixels (p, p + step) of one line, for every p.
inline void make_line(const Slide& s, const uint8_t* line, uint8_t* to) {
  const int64_t size = 2 * s.pixel_bytes * kTable;
  for (int64_t p = 0; p + s.step_w < s.width; ++p, to += size)
    make_pair(line + p * s.pixel_bytes, line + (p + s.step_w) * s.pixel_bytes, s.pixel_bytes, to);
}

// Four neighbours of one line of the output, with one panel.
template <int Vectors, Out out>
INLINE void slide_tile(const Slide& s, const uint8_t* tables, int64_t line_size, const uint8_t* index,
                       int64_t x, int64_t row, bool bytes, const Panel<out>& panel) {
  const int64_t pixel = 2 * s.pixel_bytes * kTable, run = 2 * s.kernel_w * s.pixel_bytes;
  const uint8_t* first = tables + x * s.step_w * pixel;
  const uint8_t* second = first + 2 * s.step_w * pixel;
  Sums<Vectors> sums;
  sums.clear();
  for (int64_t i = 0; i < s.kernel_h; ++i) {
    sums.add(first, second, index, run, bytes);
    first += s.dilation_h * line_size;
    second += s.dilation_h * line_size;
    index += run * Vectors * 32;
  }
  const int64_t rows[kTile] = {row, row + 1, row + 2, row + 3};
  sums.write(panel, rows, bytes);
}

template <int Vectors, Out out>
void slide_panel(const Slide& s, const uint8_t* tables, int64_t line_size, const uint8_t* weights,
                 const Panel<out>& panel) {
  static thread_local Scratch scratch;
  const int64_t bytes = s.product.row_bytes;
  uint8_t* index = scratch.take<uint8_t>(static_cast<size_t>(2 * bytes * Vectors * 32));
  split_nibbles<Vectors>(weights, bytes, index);
  const bool small = s.product.register_bits && s.product.register_bits <= 8;
  for (int64_t y = 0; y < s.count; ++y)
    for (int64_t x = 0; x < s.out_width; x += kTile) {
      const int64_t at = std::min(x, s.out_width - kTile);  // the last tile overlaps the one before
      slide_tile<Vectors>(s, tables + y * s.step_h * line_size, line_size, index, at,
                          y * s.out_width + at, small, panel);
    }
}

template <Out out>
void slide_into(const Slide& s) {
  static thread_local Scratch scratch;
  const int64_t line_size = (s.width - s.step_w) * 2 * s.pixel_bytes * kTable;
  const int64_t lines = (s.count - 1) * s.step_h + (s.kernel_h - 1) * s.dilation_h + 1;
  uint8_t* tables = scratch.take<uint8_t>(static_cast<size_t>(lines * line_size));
  const uint8_t* line = s.image + s.first * s.step_h * s.width * s.pixel_bytes;
  for (int64_t i = 0; i < lines; ++i)
    make_line(s, line + i * s.width * s.pixel_bytes, tables + i * line_size);
  for (int64_t p = 0; p * kPanel < s.product.outputs; ++p) {
    const Panel<out> panel(s.product, p, s.sink);
    const uint8_t* weights = s.product.panels + p * kPanel * s.product.row_bytes;
    if (panel.width > kHalf) {
      slide_panel<2>(s, tables, line_size, weights, panel);
    } else {
      slide_panel<1>(s, tables, line_size, weights, panel);
    }
  }
}

}  // namespace
}  // namespace proxbit
