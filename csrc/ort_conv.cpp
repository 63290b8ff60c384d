// The operators of convolutions: images with their channels first or last come in and go out.
#include <algorithm>

#include "ort_layer.hpp"
#include "parallel.hpp"
#include "scratch.hpp"
#include "window.hpp"

namespace proxbit {
namespace ort {
namespace {

constexpr int64_t kMostPad = 1 << 14, kMostStep = 1 << 20;
const std::vector<const char*> kLayouts = {"NCHW", "NHWC"};

int64_t byte_count(int64_t bits) { return (bits + 7) / 8; }

// The attributes of a convolution, of one dimension or two.
struct Geometry {
  WeightShape shape;
  bool flat;  // one dimension, which is the width of an image of height 1
  pb_window window{};
  bool last_in, last_out;  // whether the channels come last

  explicit Geometry(const Node& node) : Geometry(node, node.integers("shape", {})) {}

  Geometry(const Node& node, const Dims& dims) : shape(of(node, dims)), flat(dims.size() == 3) {
    const size_t axes = dims.size() - 2;
    const Dims ones(axes, 1), zeros(2 * axes, 0);
    const Dims steps = within(node, "strides", ones, 1, kMostStep), spread = within(node, "dilations", ones, 1, kMostStep);
    const Dims pads = within(node, "pads", zeros, 0, kMostPad);
    window.kernel_h = flat ? 1 : dims[2];
    window.kernel_w = dims.back();
    window.step_h = flat ? 1 : steps[0];
    window.step_w = steps.back();
    window.dilation_h = flat ? 1 : spread[0];
    window.dilation_w = spread.back();
    window.pad_top = flat ? 0 : pads[0];  // as ONNX has them: all that come first, then all that come last
    window.pad_bottom = flat ? 0 : pads[2];
    window.pad_left = flat ? pads[0] : pads[1];
    window.pad_right = flat ? pads[1] : pads[3];
    window.pad_bit = node.integer("pad_value", 1) > 0;
    window.channels = shape.channels * shape.groups;
    last_in = node.choice("input_layout", kLayouts) == 1;
    last_out = node.choice("output_layout", kLayouts) == 1;
  }

  // The window on an input, and the shape of its output, whose pixels are `wide` values.
  pb_window seen(const Tensor& x, bool bits, int64_t wide, bool channels_last, Dims& out) const {
    const size_t rank = flat ? 3 : 4;
    const bool last = bits || last_in;
    const int64_t pixel = bits ? byte_count(window.channels) : window.channels;
    if (x.dims.size() != rank || x.dims[last ? rank - 1 : 1] != pixel) {
      refuse("this layer takes images of " + std::to_string(window.channels) + " channels, " + (last ? "which come last" : "which come second") +
             " of " + std::to_string(rank) + " dimensions, and the input has the shape " + shown(x.dims));
    }
    pb_window w = window;
    w.batch = x.dims[0];
    w.height = flat ? 1 : x.dims[last ? 1 : 2];
    w.width = x.dims[rank - (last ? 2 : 1)];
    w.in_size = x.count();
    if (w.dilation_h * (w.kernel_h - 1) >= padded_height(w) || w.dilation_w * (w.kernel_w - 1) >= padded_width(w) ||
        w.height < 1 || w.width < 1) {
      refuse("the window of this layer is larger than its input of shape " + shown(x.dims) + " with its border");
    }
    w.stride_n = pixel * w.height * w.width;
    w.stride_c = last ? 1 : w.height * w.width;
    w.stride_h = last ? pixel * w.width : w.width;
    w.stride_w = last ? pixel : 1;
    const int64_t high = out_height(w), across = out_width(w);
    out = channels_last ? Dims{w.batch, high, across, wide} : Dims{w.batch, wide, high, across};
    if (flat) out.erase(out.begin() + (channels_last ? 1 : 2));
    w.out_size = count_of(out);
    return w;
  }

 private:
  static WeightShape of(const Node& node, const Dims& dims) {
    if (dims.size() != 3 && dims.size() != 4) {
      refuse("its weight has the shape " + shown(dims) + ", and that of a convolution has three or four numbers", kInvalidGraph);
    }
    return WeightShape::of(node, dims);
  }

  static Dims within(const Node& node, const char* name, const Dims& usual, int64_t least, int64_t most) {
    const Dims values = node.integers(name, usual);
    bool fits = values.size() == usual.size();
    for (const int64_t value : values) fits = fits && value >= least && value <= most;
    if (!fits) refuse(std::string("its attribute '") + name + "' is " + shown(values), kInvalidGraph);
    return values;
  }
};

// From pixels of channels to channels of pixels, for each image.
void channels_first(const float* from, float* to, const pb_window& w, int64_t channels, int threads) {
  const int64_t pixels = out_height(w) * out_width(w);
  constexpr int64_t kTile = 16;
  const int64_t strips = (channels + kTile - 1) / kTile;
  for_parts(w.batch * strips, threads_for_values(w.batch * channels * pixels, threads), [&](int64_t part) {
    const float* image = from + part / strips * pixels * channels;
    float* out = to + part / strips * pixels * channels;
    const int64_t first = part % strips * kTile, end = std::min(channels, first + kTile);
    for (int64_t p = 0; p < pixels; p += kTile) {
      const int64_t behind = std::min(pixels, p + kTile);
      for (int64_t c = first; c < end; ++c)
        for (int64_t q = p; q < behind; ++q) out[c * pixels + q] = image[q * channels + c];
    }
  });
}

// Where a kernel writes floats: into the output, or beside it where the channels must still be moved.
template <class Run>
void write_floats(const Tensor& y, const pb_window& w, int64_t channels, bool last, int threads, const Run& run) {
  float* out = static_cast<float*>(y.data);
  if (last || out_height(w) * out_width(w) == 1) return run(out);
  static thread_local Scratch scratch;
  float* beside = scratch.take<float>(static_cast<size_t>(w.out_size));
  run(beside);
  channels_first(beside, out, w, channels, threads);
}

class BinaryConv : public Kernel {
 public:
  explicit BinaryConv(const Node& node) : geometry_(node), layer_(node, geometry_.shape) {}

  void run(const Call& call) const override {
    const Tensor floats = call.input(kX), bits = call.input(kXBits);
    if (!floats == !bits) refuse("this layer takes floats or bits, and not both");
    const bool in_bits = !floats, out_bits = layer_.hands_on_bits();
    if (in_bits && geometry_.shape.groups != 1) refuse("this layer has groups, and so takes floats");
    const int64_t outputs = geometry_.shape.outputs;
    Dims dims;
    const Tensor& x = in_bits ? bits : floats;
    const pb_window w = geometry_.seen(x, in_bits, out_bits ? byte_count(outputs) : outputs,
                                       out_bits || geometry_.last_out, dims);
    const Tensor y = call.output(out_bits ? kYBits : kY, dims);
    if (!y) refuse(out_bits ? "this layer gives bits, its second output" : "this layer gives floats, its first output");
    const Threads threads(call, team_);
    const auto convolve = [&](float* values, uint8_t* packed) {
      check_kernel(pb_binary_conv(&layer_.layer(), &w, in_bits ? nullptr : static_cast<const float*>(x.data),
                                  in_bits ? static_cast<const uint8_t*>(x.data) : nullptr, values, packed, nullptr,
                                  threads.count()));
    };
    if (out_bits) return convolve(nullptr, static_cast<uint8_t*>(y.data));
    write_floats(y, w, outputs, geometry_.last_out, threads.count(), [&](float* out) { convolve(out, nullptr); });
  }

 private:
  Geometry geometry_;
  BinaryLayer layer_;
};

class WeightConv : public Kernel {
 public:
  explicit WeightConv(const Node& node) : geometry_(node), layer_(node, geometry_.shape) {}

  void run(const Call& call) const override {
    const Tensor x = call.input(kFloatX);
    if (!x) refuse("this layer has no input");
    const int64_t outputs = geometry_.shape.outputs;
    Dims dims;
    const pb_window w = geometry_.seen(x, false, outputs, geometry_.last_out, dims);
    const Tensor y = call.output(kY, dims);
    const Threads threads(call, team_);
    write_floats(y, w, outputs, geometry_.last_out, threads.count(), [&](float* out) {
      check_kernel(pb_weight_conv(&layer_.layer(), &w, static_cast<const float*>(x.data), out, threads.count()));
    });
  }

 private:
  Geometry geometry_;
  WeightLayer layer_;
};

}  // namespace

std::unique_ptr<Kernel> make_binary_conv(const Node& node) { return std::make_unique<BinaryConv>(node); }
std::unique_ptr<Kernel> make_weight_conv(const Node& node) { return std::make_unique<WeightConv>(node); }

}  // namespace ort
}  // namespace proxbit
