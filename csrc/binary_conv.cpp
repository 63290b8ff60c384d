// Binary convolution: signs of the image with its border, then windows as rows of bits.
#include <algorithm>
#include <cstring>
#include <new>

#include "binary.hpp"
#include "follow.hpp"
#include "parallel.hpp"
#include "scratch.hpp"
#include "window.hpp"

namespace proxbit {
namespace {

// One group of a convolution: the window, and the image in bits with its border around it.
struct Plan {
  const pb_window& w;
  int64_t channels, pixel_bytes;        // of one group
  int64_t height, width;                // of the image with its border
  int64_t out_height, out_width;

  Plan(const pb_binary& layer, const pb_window& window)
      : w(window),
        channels(window.channels / layer.groups),
        pixel_bytes((channels + 7) / 8),
        height(padded_height(window)),
        width(padded_width(window)),
        out_height(proxbit::out_height(window)),
        out_width(proxbit::out_width(window)) {}

  int64_t image_bytes() const { return height * width * pixel_bytes; }
  int64_t positions() const { return out_height * out_width; }
};

bool sound(const pb_binary& layer, const pb_window& w) {
  const int64_t sizes[] = {w.channels, w.height, w.width, w.kernel_h, w.kernel_w,
                           w.step_h, w.step_w, w.dilation_h, w.dilation_w};
  for (const int64_t size : sizes)
    if (size < 1 || size > (1 << 24)) return false;
  const int64_t pads[] = {w.pad_top, w.pad_bottom, w.pad_left, w.pad_right};
  for (const int64_t pad : pads)
    if (pad < 0 || pad > (1 << 24)) return false;
  if (w.batch < 0 || w.channels % layer.groups || (w.pad_bit & ~1)) return false;
  const int64_t channels = w.channels / layer.groups;
  if (!countable({channels, w.kernel_h, w.kernel_w})) return false;
  if (layer.products != channels * w.kernel_h * w.kernel_w) return false;
  if (layer.row_bytes != (channels + 7) / 8 * w.kernel_h * w.kernel_w) return false;
  const int64_t height = padded_height(w), width = padded_width(w);
  if (!countable({w.batch, height, width, w.channels}) ||
      !countable({w.batch, height, width, layer.outputs, layer.groups, layer.row_bytes})) {
    return false;
  }
  if (!has(layer.threshold, layer.thresholds, w.channels)) return false;
  return w.dilation_h * (w.kernel_h - 1) < height && w.dilation_w * (w.kernel_w - 1) < width;
}

// Whether input and output are as long as the window says.
bool holds(const pb_binary& layer, const pb_window& w, bool in_bits, bool out_bits) {
  const int64_t pixel = (w.channels + 7) / 8, wide = layer.outputs * layer.groups;
  const bool in = in_bits ? w.in_size == w.batch * w.height * w.width * pixel : holds_floats(w);
  return in && w.out_size == w.batch * out_height(w) * out_width(w) * (out_bits ? (wide + 7) / 8 : wide);
}

// A byte of the border: the pad bit in every channel that exists.
uint8_t border_byte(const Plan& plan, int64_t byte) {
  const int64_t left = plan.channels - 8 * byte;
  return !plan.w.pad_bit ? 0 : left >= 8 ? 255 : static_cast<uint8_t>((1 << left) - 1);
}

void fill_border(const Plan& plan, uint8_t* to, int64_t pixels) {
  for (int64_t p = 0; p < pixels; ++p)
    for (int64_t b = 0; b < plan.pixel_bytes; ++b) *to++ = border_byte(plan, b);
}

// One line of the image, as bits of one group.
void sign_line(const Plan& plan, const float* x, int64_t image, int64_t group, int64_t line,
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
bool is_plane(const pb_window& w) { return w.stride_w == 1 && w.stride_h == w.width && w.stride_c != 1; }

const uint8_t* sign_plane(const Plan& plan, const Input& input, int64_t image, int64_t group) {
  static thread_local Scratch scratch;
  const pb_window& w = plan.w;
  const int64_t first = group * plan.channels, pixels = w.height * w.width;
  uint8_t* bits = scratch.take<uint8_t>(static_cast<size_t>(pixels * plan.pixel_bytes));
  binary_kernels().sign_pixels(input.x + image * w.stride_n + first * w.stride_c, pixels, plan.channels, w.stride_c,
                               input.threshold ? input.threshold + first : nullptr, bits, plan.pixel_bytes);
  return bits;
}

void sign_image(const Plan& plan, const Input& input, int64_t image, int64_t group, uint8_t* to) {
  const pb_window& w = plan.w;
  const int64_t line = w.width * plan.pixel_bytes;
  const uint8_t* ready = input.bits ? input.bits + image * w.height * line : nullptr;
  if (!ready && is_plane(w)) ready = sign_plane(plan, input, image, group);
  fill_border(plan, to, w.pad_top * plan.width);
  to += w.pad_top * plan.width * plan.pixel_bytes;
  for (int64_t y = 0; y < w.height; ++y) {
    fill_border(plan, to, w.pad_left);
    to += w.pad_left * plan.pixel_bytes;
    if (ready) {
      std::memcpy(to, ready + y * line, static_cast<size_t>(line));
    } else {
      sign_line(plan, input.x, image, group, y, input.threshold, to);
    }
    to += line;
    fill_border(plan, to, w.pad_right);
    to += w.pad_right * plan.pixel_bytes;
  }
  fill_border(plan, to, w.pad_bottom * plan.width);
}

// Copies whole words, so up to seven bytes more: they are overwritten by what follows, and a scratch
// has room for the last.
inline void copy_run(uint8_t* to, const uint8_t* from, int64_t bytes) {
  for (; bytes > 0; bytes -= 8, to += 8, from += 8) {
    uint64_t word;
    std::memcpy(&word, from, 8);
    std::memcpy(to, &word, 8);
  }
}

// The window at one place as a row of bits.
void window_row(const Plan& plan, const uint8_t* corner, uint8_t* to, int64_t padded) {
  const pb_window& w = plan.w;
  const int64_t run = w.dilation_w == 1 ? w.kernel_w : 1, bytes = run * plan.pixel_bytes;
  const int64_t line = w.dilation_h * plan.width * plan.pixel_bytes;
  uint8_t* const end = to + padded;
  for (int64_t i = 0; i < w.kernel_h; ++i, corner += line)
    for (int64_t j = 0; j < w.kernel_w; j += run, to += bytes)
      copy_run(to, corner + j * w.dilation_w * plan.pixel_bytes, bytes);
  while (to < end) *to++ = 0;
}

// The windows at `count` positions, in the order of the output.
void window_rows(const Plan& plan, const uint8_t* image, int64_t first, int64_t count, uint8_t* to,
                 int64_t padded) {
  int64_t y = first / plan.out_width, x = first % plan.out_width;
  for (int64_t r = 0; r < count; ++r, to += padded) {
    const int64_t pixel = y * plan.w.step_h * plan.width + x * plan.w.step_w;
    window_row(plan, image + pixel * plan.pixel_bytes, to, padded);
    if (++x == plan.out_width) x = 0, ++y;
  }
}

// Some positions of one image and one group, through all panels.
void convolve_block(const pb_binary& layer, const Plan& plan, const uint8_t* image_bits, int64_t image,
                    int64_t group, int64_t first, int64_t count, const Output& out) {
  static thread_local Scratch scratch;
  const Product product = product_of(layer, group);
  uint8_t* rows = scratch.take<uint8_t>(static_cast<size_t>(count * product.row_bytes));
  window_rows(plan, image_bits, first, count, rows, product.row_bytes);
  const int64_t width = layer.outputs * layer.groups, row = image * plan.positions() + first;
  const Sink sink = sink_at(out, width, row, group * layer.outputs);
  binary_kernels().multiply(product, rows, count, 0, panels_of(layer.outputs), sink);
}

// Lines of the output that one thread takes at a time, so that the tables of their input stay in L2.
int64_t lines_at_once(const Plan& plan, int64_t threads) {
  constexpr int64_t kTableBytes = 256 * 1024;
  const int64_t lines = kTableBytes / (32 * plan.width * plan.pixel_bytes);
  const int64_t beyond = plan.w.dilation_h * (plan.w.kernel_h - 1);
  const int64_t fit = (lines - beyond - 1) / plan.w.step_h + 1;
  const int64_t fair = (plan.out_height + threads - 1) / threads;
  return std::clamp<int64_t>(fit, 1, fair);
}

void slide_block(const pb_binary& layer, const Plan& plan, const uint8_t* image_bits, int64_t image,
                 int64_t group, int64_t first, int64_t count, const Output& out) {
  const Product product = product_of(layer, group);
  const int64_t width = layer.outputs * layer.groups;
  const int64_t row = image * plan.positions() + first * plan.out_width;
  const Sink sink = sink_at(out, width, row, group * layer.outputs);
  const pb_window& w = plan.w;
  binary_kernels().slide({product, image_bits, plan.width, plan.pixel_bytes, w.kernel_h, w.kernel_w,
                          w.step_h, w.step_w, w.dilation_h, plan.out_width, first, count, sink});
}

void convolve(const pb_binary& layer, const Plan& plan, const Input& input, const Output& out, int threads) {
  static thread_local Scratch scratch;
  const int64_t images = plan.w.batch * layer.groups;
  uint8_t* bits = scratch.take<uint8_t>(static_cast<size_t>(images * plan.image_bytes()));
  const int team = useful_threads(layer, plan.w.batch * plan.positions(), threads);
  for_parts(images, team, [&](int64_t part) {
    sign_image(plan, input, part / layer.groups, part % layer.groups, bits + part * plan.image_bytes());
  });
  const int share = images >= team ? 1 : team;
  const auto slides_here = binary_kernels().slides;
  const bool slides = slides_here && slides_here(plan.w, plan.pixel_bytes, plan.out_width);
  const int64_t all = slides ? plan.out_height : plan.positions();
  const int64_t block = slides ? lines_at_once(plan, share)
                               : rows_at_once(all, padded_bytes(layer.row_bytes), share);
  const int64_t blocks = (all + block - 1) / block;
  const int64_t width = layer.outputs * layer.groups, line = slides ? plan.out_width : 1;
  for_parts(images * blocks, team, [&](int64_t part) {
    const int64_t image = part / blocks, first = part % blocks * block, count = std::min(block, all - first);
    (slides ? slide_block : convolve_block)(layer, plan, bits + image * plan.image_bytes(),
                                            image / layer.groups, image % layer.groups, first, count, out);
    if (out.then && layer.groups == 1)
      follow_rows(*out.then, out.values, width, image * plan.positions() + first * line, count * line);
  });
  if (out.then && layer.groups > 1)
    follow(*out.then, out.values, plan.w.batch * plan.positions(), width, team);
}

}  // namespace
}  // namespace proxbit

using namespace proxbit;

int pb_binary_conv(const pb_binary* layer, const pb_window* window, const float* x,
                   const uint8_t* bits, float* out, uint8_t* out_bits, const pb_following* then,
                   int threads) try {
  if (!sound(layer, out, out_bits, then) || !window || !sound(*layer, *window)) return PB_BAD_ARGUMENT;
  if (bits && (x || layer->groups != 1)) return PB_BAD_ARGUMENT;
  if (window->batch == 0) return PB_OK;
  if ((!x && !bits) || !holds(*layer, *window, !x, !out)) return PB_BAD_ARGUMENT;
  convolve(*layer, Plan(*layer, *window), {x, layer->threshold, bits}, {out, out_bits, then}, threads);
  return PB_OK;
} catch (const std::bad_alloc&) {
  return PB_NO_MEMORY;
}
