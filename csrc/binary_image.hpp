// The image of a binary convolution: its signs as bits, channels last, with the border around them.
#pragma once

#include <algorithm>
#include <cstring>

#include "binary.hpp"
#include "scratch.hpp"
#include "window.hpp"

namespace proxbit {
namespace {

// Sizes that can be multiplied, and a place for the kernel.
inline bool is_window(const pb_window& w) {
  const int64_t sizes[] = {w.channels, w.height, w.width, w.kernel_h, w.kernel_w,
                           w.step_h, w.step_w, w.dilation_h, w.dilation_w};
  for (const int64_t size : sizes)
    if (size < 1 || size > (1 << 24)) return false;
  const int64_t pads[] = {w.pad_top, w.pad_bottom, w.pad_left, w.pad_right};
  for (const int64_t pad : pads)
    if (pad < 0 || pad > (1 << 24)) return false;
  if (w.batch < 0 || (w.pad_bit & ~1)) return false;
  return w.dilation_h * (w.kernel_h - 1) < padded_height(w) && w.dilation_w * (w.kernel_w - 1) < padded_width(w);
}

// One group of a convolution: the window, and the image in bits with its border around it.
struct Plan {
  const pb_window& w;
  int64_t channels, pixel_bytes;        // of one group
  int64_t height, width;                // of the image with its border
  int64_t out_height, out_width;

  Plan(const pb_window& window, int64_t groups)
      : w(window),
        channels(window.channels / groups),
        pixel_bytes((channels + 7) / 8),
        height(padded_height(window)),
        width(padded_width(window)),
        out_height(proxbit::out_height(window)),
        out_width(proxbit::out_width(window)) {}

  int64_t image_bytes() const { return height * width * pixel_bytes; }
  int64_t positions() const { return out_height * out_width; }
};

// A byte of the border: the pad bit in every channel that exists.
inline uint8_t border_byte(const Plan& plan, int64_t byte) {
  const int64_t left = plan.channels - 8 * byte;
  return !plan.w.pad_bit ? 0 : left >= 8 ? 255 : static_cast<uint8_t>((1 << left) - 1);
}

inline void fill_border(const Plan& plan, uint8_t* to, int64_t pixels) {
  for (int64_t p = 0; p < pixels; ++p)
    for (int64_t b = 0; b < plan.pixel_bytes; ++b) *to++ = border_byte(plan, b);
}

// One line of the image, as bits of one group.
inline void sign_line(const Plan& plan, const float* x, int64_t image, int64_t group, int64_t line,
               const float* threshold, uint8_t* to) {
  const pb_window& w = plan.w;
  const int64_t first = group * plan.channels;
  const float* from = x + image * w.stride_n + first * w.stride_c + line * w.stride_h;
  const float* edges = threshold ? threshold + first : nullptr;
  const BinaryKernels& kernels = binary_kernels();
  if (w.stride_c == 1 && w.stride_w == plan.channels && plan.channels % 8 == 0 && !edges) {
    kernels.sign_row(from, w.width * plan.channels, nullptr, to, w.width * plan.pixel_bytes);
    return;
  }
  if (w.stride_w == 1 && w.stride_c != 1) {
    kernels.sign_pixels(from, w.width, plan.channels, w.stride_c, edges, to, plan.pixel_bytes);
    return;
  }
  for (int64_t p = 0; p < w.width; ++p, from += w.stride_w, to += plan.pixel_bytes) {
    if (w.stride_c == 1) {
      kernels.sign_row(from, plan.channels, edges, to, plan.pixel_bytes);
    } else {
      kernels.sign_pixels(from, 1, plan.channels, w.stride_c, edges, to, plan.pixel_bytes);
    }
  }
}

struct Input {
  const float* x;
  const float* threshold;
  const uint8_t* bits;
};

// Whether a channel is one run of pixels: then all of its lines are signed at once, without ends between them.
inline bool is_plane(const pb_window& w) { return w.stride_w == 1 && w.stride_h == w.width && w.stride_c != 1; }

inline const uint8_t* sign_plane(const Plan& plan, const Input& input, int64_t image, int64_t group, int64_t line,
                                 int64_t lines) {
  static thread_local Scratch scratch;
  const pb_window& w = plan.w;
  const int64_t first = group * plan.channels, pixels = lines * w.width;
  uint8_t* bits = scratch.take<uint8_t>(static_cast<size_t>(pixels * plan.pixel_bytes));
  const float* from = input.x + image * w.stride_n + first * w.stride_c + line * w.stride_h;
  binary_kernels().sign_pixels(from, pixels, plan.channels, w.stride_c,
                               input.threshold ? input.threshold + first : nullptr, bits, plan.pixel_bytes);
  return bits;
}

// Lines [first, first + count) of the image with its border.
inline void sign_lines(const Plan& plan, const Input& input, int64_t image, int64_t group, int64_t first, int64_t count,
                       uint8_t* to) {
  const pb_window& w = plan.w;
  const int64_t line = w.width * plan.pixel_bytes, above = std::clamp<int64_t>(w.pad_top - first, 0, count);
  const int64_t begin = std::clamp<int64_t>(first - w.pad_top, 0, w.height);
  const int64_t end = std::clamp<int64_t>(first + count - w.pad_top, 0, w.height);
  const uint8_t* ready = input.bits ? input.bits + (image * w.height + begin) * line : nullptr;
  if (!ready && begin < end && is_plane(w)) ready = sign_plane(plan, input, image, group, begin, end - begin);
  fill_border(plan, to, above * plan.width);
  to += above * plan.width * plan.pixel_bytes;
  for (int64_t y = begin; y < end; ++y) {
    fill_border(plan, to, w.pad_left);
    to += w.pad_left * plan.pixel_bytes;
    if (ready) {
      std::memcpy(to, ready + (y - begin) * line, static_cast<size_t>(line));
    } else {
      sign_line(plan, input.x, image, group, y, input.threshold, to);
    }
    to += line;
    fill_border(plan, to, w.pad_right);
    to += w.pad_right * plan.pixel_bytes;
  }
  fill_border(plan, to, (count - above - (end - begin)) * plan.width);
}

}  // namespace
}  // namespace proxbit
