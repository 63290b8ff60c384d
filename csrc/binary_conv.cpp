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
  convolve(*layer, Plan(*window, layer->groups), {x, layer->threshold, bits}, {out, out_bits, then}, threads);
  return PB_OK;
} catch (const std::bad_alloc&) {
  return PB_NO_MEMORY;
}
