// Binary convolution: windows of the image of bits, as rows of bits.
#include <algorithm>
#include <cstring>
#include <new>

#include "binary.hpp"
#include "binary_image.hpp"
#include "follow.hpp"
#include "parallel.hpp"
#include "scratch.hpp"
#include "window.hpp"

namespace proxbit {
namespace {

bool sound(const pb_binary& layer, const pb_window& w) {
  if (!is_window(w) || w.channels % layer.groups) return false;
  const int64_t channels = w.channels / layer.groups;
  if (!countable({channels, w.kernel_h, w.kernel_w})) return false;
  if (layer.products != channels * w.kernel_h * w.kernel_w) return false;
  if (layer.row_bytes != (channels + 7) / 8 * w.kernel_h * w.kernel_w) return false;
  const int64_t height = padded_height(w), width = padded_width(w);
  if (!countable({w.batch, height, width, w.channels}) ||
      !countable({w.batch, height, width, layer.outputs, layer.groups, layer.row_bytes})) {
    return false;
  }
  return has(layer.threshold, layer.thresholds, w.channels);
}

// Whether input and output are as long as the window says.
bool holds(const pb_binary& layer, const pb_window& w, bool in_bits, bool out_bits) {
  const int64_t pixel = (w.channels + 7) / 8, wide = layer.outputs * layer.groups;
  const bool in = in_bits ? w.in_size == w.batch * w.height * w.width * pixel : holds_floats(w);
  return in && w.out_size == w.batch * out_height(w) * out_width(w) * (out_bits ? (wide + 7) / 8 : wide);
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

// Some neighbouring positions of one image and one group: what one thread computes. They are places of the output,
// or whole lines of it where windows slide.
struct Share {
  int64_t image, group, first, count;
};

// What a share sees of the image with its border: its lines from `line` of the output on.
struct Strip {
  const uint8_t* bits;
  int64_t line;
};

// Each share makes its own strip, though neighbours have lines in common: there is nothing to wait for, and
// a line comes from the caches of the thread that wrote it.
Strip strip_of(const Plan& plan, const Input& input, const Share& share, int64_t line, int64_t lines) {
  static thread_local Scratch scratch;
  const pb_window& w = plan.w;
  const int64_t count = (lines - 1) * w.step_h + w.dilation_h * (w.kernel_h - 1) + 1;
  uint8_t* bits = scratch.take<uint8_t>(static_cast<size_t>(count * plan.width * plan.pixel_bytes));
  sign_lines(plan, input, share.image, share.group, line * w.step_h, count, bits);
  return {bits, line};
}

// The windows at `count` positions, in the order of the output.
void window_rows(const Plan& plan, const Strip& strip, int64_t first, int64_t count, uint8_t* to, int64_t padded) {
  int64_t y = first / plan.out_width - strip.line, x = first % plan.out_width;
  for (int64_t r = 0; r < count; ++r, to += padded) {
    const int64_t pixel = y * plan.w.step_h * plan.width + x * plan.w.step_w;
    window_row(plan, strip.bits + pixel * plan.pixel_bytes, to, padded);
    if (++x == plan.out_width) x = 0, ++y;
  }
}

// Whether the windows are the pixels themselves, as they came.
bool sees_pixels(const Plan& plan, const Input& input) {
  const pb_window& w = plan.w;
  const bool alone = w.kernel_h == 1 && w.kernel_w == 1 && w.step_h == 1 && w.step_w == 1;
  const bool borderless = plan.height == w.height && plan.width == w.width;
  return input.bits && alone && borderless && plan.pixel_bytes == padded_bytes(plan.pixel_bytes);
}

// Rows of a block: where something follows, as many as stay in an L2 cache until then.
int64_t block_rows(const Share& share, int64_t row_bytes, int64_t width, bool followed) {
  constexpr int64_t kFloats = 32 * 1024, kFewest = 32;
  const int64_t most = rows_at_once(share.count, row_bytes, 1), tile = binary_kernels().tile;
  return followed ? std::min(most, std::max(kFewest, kFloats / width / tile * tile)) : most;
}

// Calls body(first, count) for one block of a share after the other.
template <class Body>
void for_blocks(const Share& share, int64_t block, const Body& body) {
  const int64_t end = share.first + share.count;
  for (int64_t first = share.first; first < end; first += block) body(first, std::min(block, end - first));
}

void follow_block(const pb_binary& layer, const Plan& plan, const Output& out, int64_t image, int64_t first,
                  int64_t count) {
  const int64_t width = layer.outputs * layer.groups;
  if (out.then && layer.groups == 1) follow_rows(*out.then, out.values, width, image * plan.positions() + first, count);
}

// Windows as rows of bits, through all panels.
void convolve_rows(const pb_binary& layer, const Plan& plan, const Input& input, const Share& share, const Output& out) {
  static thread_local Scratch scratch;
  const Product product = product_of(layer, share.group);
  const int64_t width = layer.outputs * layer.groups, bytes = product.row_bytes;
  const int64_t line = share.first / plan.out_width, last = (share.first + share.count - 1) / plan.out_width;
  const bool ready = sees_pixels(plan, input);
  const Strip strip = ready ? Strip{} : strip_of(plan, input, share, line, last - line + 1);
  for_blocks(share, block_rows(share, bytes, width, out.then), [&](int64_t first, int64_t count) {
    const int64_t row = share.image * plan.positions() + first;
    const uint8_t* rows = ready ? input.bits + row * bytes : nullptr;
    if (!ready) {
      uint8_t* own = scratch.take<uint8_t>(static_cast<size_t>(count * bytes));
      window_rows(plan, strip, first, count, own, bytes);
      rows = own;
    }
    const Sink sink = sink_at(out, width, row, share.group * layer.outputs);
    binary_kernels().multiply(product, rows, count, 0, panels_of(layer.outputs), sink);
    follow_block(layer, plan, out, share.image, first, count);
  });
}

// Lines of the output that are computed at a time, so that the tables of their input stay in L2.
int64_t lines_at_once(const Plan& plan) {
  constexpr int64_t kTableBytes = 256 * 1024;
  const int64_t lines = kTableBytes / (32 * plan.width * plan.pixel_bytes);
  const int64_t beyond = plan.w.dilation_h * (plan.w.kernel_h - 1);
  return std::max<int64_t>((lines - beyond - 1) / plan.w.step_h + 1, 1);
}

// Lines of windows that share their tables.
void convolve_lines(const pb_binary& layer, const Plan& plan, const Input& input, const Share& share,
                    const Output& out) {
  const Product product = product_of(layer, share.group);
  const int64_t width = layer.outputs * layer.groups;
  const Strip strip = strip_of(plan, input, share, share.first, share.count);
  const pb_window& w = plan.w;
  for_blocks(share, lines_at_once(plan), [&](int64_t first, int64_t count) {
    const int64_t row = share.image * plan.positions() + first * plan.out_width;
    const Sink sink = sink_at(out, width, row, share.group * layer.outputs);
    binary_kernels().slide({product, strip.bits, plan.width, plan.pixel_bytes, w.kernel_h, w.kernel_w, w.step_h,
                            w.step_w, w.dilation_h, plan.out_width, first - strip.line, count, sink});
    follow_block(layer, plan, out, share.image, first * plan.out_width, count * plan.out_width);
  });
}

// Shares of one image: one for each thread, or one at all where there are many images or few positions. More, so that
// who is done could help, gain nothing: the lines of a share lie in the caches of the thread that wrote them.
int64_t shares_of(int64_t positions, int64_t images, int team) {
  constexpr int64_t kFewest = 16, kMany = 4;
  return images >= kMany * team ? 1 : std::clamp<int64_t>(positions / kFewest, 1, team);
}

void convolve(const pb_binary& layer, const Plan& plan, const Input& input, const Output& out, int threads) {
  const int64_t images = plan.w.batch * layer.groups;
  const int team = useful_threads(layer, plan.w.batch * plan.positions(), threads);
  const auto slides_here = binary_kernels().slides;
  const bool slides = slides_here && slides_here(plan.w, plan.pixel_bytes, plan.out_width);
  const int64_t all = slides ? plan.out_height : plan.positions(), unit = slides ? 1 : binary_kernels().tile;
  const int64_t units = ceil_div(all, unit), shares = std::min(units, shares_of(plan.positions(), images, team));
  for_parts(images * shares, team, [&](int64_t part) {
    const int64_t image = part / shares, share = part % shares;
    const int64_t first = units * share / shares * unit, end = std::min(units * (share + 1) / shares * unit, all);
    (slides ? convolve_lines : convolve_rows)(layer, plan, input,
                                              {image / layer.groups, image % layer.groups, first, end - first}, out);
  });
  if (out.then && layer.groups > 1)
    follow(*out.then, out.values, plan.w.batch * plan.positions(), layer.outputs * layer.groups, team);
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
  convolve(*layer, Plan(*window, layer->groups), {x, layer->threshold, bits}, {out, out_bits, then}, threads);
  return PB_OK;
} catch (const std::bad_alloc&) {
  return PB_NO_MEMORY;
}
