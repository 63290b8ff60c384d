// Depthwise binary convolutions: the C ABI, and how work is cut into blocks of lines.
#include "depthwise.hpp"

#include <algorithm>
#include <new>

#include "activation.hpp"
#include "backend.hpp"
#include "binary_image.hpp"
#include "follow.hpp"
#include "parallel.hpp"

namespace proxbit {
namespace {

bool sound_layer(const pb_binary& layer, bool out_bits) {
  const int64_t channels = layer.groups, taps = layer.products;
  if (layer.outputs != 1 || taps < 1 || taps > kMostTaps || layer.row_bytes != taps || channels < 1) return false;
  if (!layer.panels || !layer.scale || layer.scales != channels) return false;
  if (!countable({channels, taps}) || layer.panel_bytes != taps * ceil_div(channels, 8)) return false;
  if (!has(layer.bias, layer.biases, channels) || !has(layer.threshold, layer.thresholds, channels)) return false;
  const int bits = layer.register_bits;
  if ((bits != 0 && (bits < 2 || bits > 24)) || !is_activation(layer.activation)) return false;
  return !out_bits || (layer.low && layer.high && layer.flip && layer.bounds == channels);
}

bool sound_window(const pb_binary& layer, const pb_window& w, bool in_bits, bool out_bits) {
  if (!is_window(w) || w.channels != layer.groups || layer.products != w.kernel_h * w.kernel_w) return false;
  if (!countable({w.batch, padded_height(w), padded_width(w), round_up(w.channels, 64)})) return false;
  const int64_t bytes = ceil_div(w.channels, 8);
  const bool in = in_bits ? w.in_size == w.batch * w.height * w.width * bytes : holds_floats(w);
  return in && w.out_size == w.batch * out_height(w) * out_width(w) * (out_bits ? bytes : w.channels);
}

// What the kernels read of a layer, for some pixels side by side: where a pixel does not fill a vector, a line of the
// output is computed as if it were one pixel.
struct Row {
  Product product;
  const uint8_t* weights;
  int64_t weight_row;
};

template <class T>
void repeat(const T* from, int64_t count, int64_t times, T* to) {
  for (int64_t i = 0; i < times; ++i, to += count) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

template <class T>
const T* repeated(const T* from, int64_t count, int64_t times, Scratch& scratch) {
  if (!from || times == 1) return from;
  T* to = scratch.take<T>(static_cast<size_t>(count * times));
  repeat(from, count, times, to);
  return to;
}

Product repeated_product(const pb_binary& layer, int64_t times) {
  static thread_local Scratch scale, bias, low, high, flip;
  Product product{};
  product.outputs = layer.groups * times;
  product.register_bits = layer.register_bits;
  product.slope = layer.slope;
  product.activation = layer.activation;
  product.scale = repeated(layer.scale, layer.groups, times, scale);
  product.bias = repeated(layer.bias, layer.groups, times, bias);
  product.low = repeated(layer.low, layer.groups, times, low);
  product.high = repeated(layer.high, layer.groups, times, high);
  product.flip = repeated(layer.flip, layer.groups, times, flip);
  return product;
}

Row row_of(const pb_binary& layer, const DepthwiseKernels& kernels, int64_t times) {
  static thread_local Scratch once, many;
  const int64_t taps = layer.products, channels = layer.groups, wide = round_up(channels, kernels.at_once);
  uint8_t* signs = once.take<uint8_t>(static_cast<size_t>(taps * wide));
  kernels.spread(layer.panels, taps, ceil_div(channels, 8), wide, signs);
  const Product product = repeated_product(layer, times);
  if (times == 1) return {product, signs, wide};
  uint8_t* weights = many.take<uint8_t>(static_cast<size_t>(taps * product.outputs));
  for (int64_t t = 0; t < taps; ++t) repeat(signs + t * wide, channels, times, weights + t * product.outputs);
  return {product, weights, product.outputs};
}

// Whether the pixels of a line follow each other without gaps, and would leave vectors half empty by themselves.
bool joins_pixels(const Plan& plan, int64_t at_once) {
  return plan.w.step_w == 1 && plan.channels % 8 == 0 && plan.channels % at_once != 0;
}

// Lines of the output that one thread takes at a time, so that their input stays in L2.
int64_t lines_at_once(const Plan& plan, int64_t wide, int64_t shares) {
  constexpr int64_t kImageBytes = 256 * 1024;
  const int64_t lines = kImageBytes / (plan.width * wide), beyond = plan.w.dilation_h * (plan.w.kernel_h - 1);
  const int64_t fit = (lines - beyond - 1) / plan.w.step_h + 1, fair = ceil_div(plan.out_height, shares);
  return std::clamp<int64_t>(fit, 1, fair);
}

// The signs of some lines of the image, and what comes of them.
void convolve_lines(const DepthwiseKernels& kernels, const Plan& plan, const Row& row, const uint8_t* bits, bool joins,
                    int64_t count, const Sink& sink) {
  static thread_local Scratch scratch;
  const pb_window& w = plan.w;
  const int64_t pixels = ((count - 1) * w.step_h + w.dilation_h * (w.kernel_h - 1) + 1) * plan.width;
  const int64_t all = pixels * plan.channels, wide = joins ? plan.channels : round_up(plan.channels, kernels.at_once);
  uint8_t* image = scratch.take<uint8_t>(static_cast<size_t>(round_up(pixels * wide, kernels.at_once)));
  if (joins) kernels.spread(bits, 1, all / 8, round_up(all, kernels.at_once), image);
  else kernels.spread(bits, pixels, plan.pixel_bytes, wide, image);
  const int64_t line = plan.width * wide, tap_h = w.dilation_h * line, tap_w = w.dilation_w * wide;
  const int64_t across = joins ? 1 : count, along = joins ? count : plan.out_width;
  kernels.convolve({row.product, row.weights, image, row.weight_row, w.kernel_h, w.kernel_w, tap_h, tap_w,
                    across, w.step_h * line, along, joins ? w.step_h * line : w.step_w * wide, sink});
}

void convolve_channels(const pb_binary& layer, const Plan& plan, const Input& input, const Output& out, int threads) {
  static thread_local Scratch scratch;
  const DepthwiseKernels& kernels = *backend().depthwise;
  const int64_t images = plan.w.batch;
  uint8_t* bits = scratch.take<uint8_t>(static_cast<size_t>(images * plan.image_bytes()));
  const int team = useful_threads(layer, images * plan.positions(), threads);
  for_parts(images, team, [&](int64_t i) {
    sign_lines(plan, input, i, 0, 0, plan.height, bits + i * plan.image_bytes());
  });
  const bool joins = joins_pixels(plan, kernels.at_once);
  const Row row = row_of(layer, kernels, joins ? plan.out_width : 1);
  const int64_t block = lines_at_once(plan, round_up(plan.channels, kernels.at_once), images >= team ? 1 : team);
  const int64_t blocks = ceil_div(plan.out_height, block);
  for_parts(images * blocks, team, [&](int64_t part) {
    const int64_t image = part / blocks, first = part % blocks * block;
    const int64_t at = image * plan.image_bytes() + first * plan.w.step_h * plan.width * plan.pixel_bytes;
    const int64_t line = image * plan.out_height + first;
    const int64_t count = std::min(block, plan.out_height - first);
    const Sink sink = joins ? sink_at(out, plan.channels * plan.out_width, line, 0)
                            : sink_at(out, plan.channels, line * plan.out_width, 0);
    convolve_lines(kernels, plan, row, bits + at, joins, count, sink);
    if (out.then) follow_rows(*out.then, out.values, plan.channels, line * plan.out_width, count * plan.out_width);
  });
}

}  // namespace
}  // namespace proxbit

using namespace proxbit;

int pb_depthwise_conv(const pb_binary* layer, const pb_window* window, const float* x, const uint8_t* bits, float* out,
                      uint8_t* out_bits, const pb_following* then, int threads) try {
  if (!layer || !window || !out == !out_bits || (x && bits) || threads < 1) return PB_BAD_ARGUMENT;
  if (!sound_layer(*layer, out_bits) || (then && (!out || !sound(*then)))) return PB_BAD_ARGUMENT;
  if (window->batch == 0) return PB_OK;
  if ((!x && !bits) || !sound_window(*layer, *window, bits, out_bits)) return PB_BAD_ARGUMENT;
  convolve_channels(*layer, Plan(*window, 1), {x, layer->threshold, bits}, {out, out_bits, then}, threads);
  return PB_OK;
} catch (const std::bad_alloc&) {
  return PB_NO_MEMORY;
}
