// The rows of a convolution: which inputs each output position sees.
#pragma once

#include <cstring>

#include "parallel.hpp"
#include "scratch.hpp"
#include "window.hpp"

namespace proxbit {
namespace {

// Some images with their padding, channels last.
struct Images {
  const float* data;
  int64_t stride_n, stride_h, stride_w;
};

inline bool lies_ready(const pb_window& w) {
  return w.stride_c == 1 && padded_height(w) == w.height && padded_width(w) == w.width;
}

// One line of an image, its channels brought together; some at a time, so that each line of the
// cache is written once.
inline void copy_line(const pb_window& w, const float* from, float* to) {
  constexpr int64_t at_once = 16;
  for (int64_t first = 0; first < w.channels; first += at_once) {
    const int64_t last = first + at_once < w.channels ? first + at_once : w.channels;
    for (int64_t x = 0; x < w.width; ++x) {
      const float* pixel = from + x * w.stride_w;
      for (int64_t c = first; c < last; ++c) to[x * w.channels + c] = pixel[c * w.stride_c];
    }
  }
}

inline void copy_padded_line(const pb_window& w, const float* image, int64_t y, float* to) {
  const int64_t size = padded_width(w) * w.channels, before = w.pad_left * w.channels;
  y -= w.pad_top;
  if (y < 0 || y >= w.height) {
    std::memset(to, 0, static_cast<size_t>(size) * sizeof(float));
    return;
  }
  const int64_t behind = before + w.width * w.channels;
  std::memset(to, 0, static_cast<size_t>(before) * sizeof(float));
  copy_line(w, image + y * w.stride_h, to + before);
  std::memset(to + behind, 0, static_cast<size_t>(size - behind) * sizeof(float));
}

// Copies with padding, unless the images lie as they should already.
inline Images padded_images(const pb_window& w, const float* x, int64_t count, Scratch& memory,
                            int threads) {
  if (lies_ready(w)) return {x, w.stride_n, w.stride_h, w.stride_w};
  const int64_t height = padded_height(w), line = padded_width(w) * w.channels;
  float* copy = memory.take<float>(static_cast<size_t>(count * height * line));
  for_parts(count * height, threads, [&](int64_t part) {
    const float* image = x + part / height * w.stride_n;
    copy_padded_line(w, image, part % height, copy + part * line);
  });
  return {copy, height * line, line, w.channels};
}

// Output positions as rows of inputs in the order (kernel_h, kernel_w, channel of the group).
struct WindowRows {
  const pb_window& window;
  Images images;
  int64_t groups;
  int64_t count;

  const float* take(int64_t first, int64_t some, int64_t group, int64_t& stride) const {
    static thread_local Scratch memory;
    const int64_t channels = window.channels / groups;
    stride = window.kernel_h * window.kernel_w * channels;
    float* rows = memory.take<float>(static_cast<size_t>(some * stride));
    for (int64_t i = 0; i < some; ++i) {
      copy_window(corner(first + i) + group * channels, channels, rows + i * stride);
    }
    return rows;
  }

 private:
  const float* corner(int64_t row) const {
    const int64_t width = out_width(window), height = out_height(window);
    const int64_t x = row % width, y = row / width % height, n = row / width / height;
    return images.data + n * images.stride_n + y * window.step_h * images.stride_h +
           x * window.step_w * images.stride_w;
  }

  void copy_window(const float* from, int64_t channels, float* to) const {
    const bool together = window.dilation_w == 1 && images.stride_w == channels;
    const int64_t runs = together ? 1 : window.kernel_w, run = window.kernel_w / runs * channels;
    for (int64_t y = 0; y < window.kernel_h; ++y) {
      const float* line = from + y * window.dilation_h * images.stride_h;
      for (int64_t x = 0; x < runs; ++x, to += run) {
        const float* pixel = line + x * window.dilation_w * images.stride_w;
        std::memcpy(to, pixel, static_cast<size_t>(run) * sizeof(float));
      }
    }
  }
};

}  // namespace
}  // namespace proxbit
