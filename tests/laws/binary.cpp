// Laws of binary weights times binary inputs.
#include <memory>

#include "laws.hpp"

namespace {

// A layer with everything that it points to; its panels are made anew on each backend.
struct Layer {
  pb_binary shape{};
  bool out_bits;
  Guarded rows, scale, bias, threshold, low, high, flip;

  int64_t width() const { return shape.outputs * shape.groups; }

  std::string about() const {
    return text({{"outputs", shape.outputs}, {"products", shape.products}, {"groups", shape.groups},
                 {"register", shape.register_bits}, {"activation", shape.activation},
                 {"bias", shape.biases}, {"thresholds", shape.thresholds}, {"out_bits", out_bits}});
  }

  template <class Call>
  int with_panels(const Call& call) const {
    const size_t bytes = pb_panel_bytes(shape.outputs, shape.row_bytes);
    Guarded panels(bytes * static_cast<size_t>(shape.groups));
    const int64_t group_rows = shape.outputs * shape.row_bytes;
    for (int64_t g = 0; g < shape.groups; ++g) {
      const int code = pb_make_panels(rows.data() + g * group_rows, shape.outputs, shape.row_bytes,
                                      panels.data() + static_cast<size_t>(g) * bytes);
      if (code) return code;
    }
    if (!reads_back(panels, bytes)) return kNotTheSame;
    pb_binary layer = shape;
    layer.panels = panels.data();
    layer.panel_bytes = static_cast<int64_t>(panels.size());
    const int code = call(layer);
    return panels.intact() ? code : kNotTheSame;
  }

  // Whether the panels hold the very rows that they were made of.
  bool reads_back(const Guarded& panels, size_t bytes) const {
    Guarded again(rows.size());
    const int64_t group_rows = shape.outputs * shape.row_bytes;
    for (int64_t g = 0; g < shape.groups; ++g) {
      pb_read_panels(panels.data() + static_cast<size_t>(g) * bytes, shape.outputs, shape.row_bytes,
                     again.data() + g * group_rows);
    }
    return again.intact() && !std::memcmp(again.data(), rows.data(), rows.size());
  }
};

void draw_register(Random& random, pb_binary& shape) {
  const int64_t kind = random.from(0, 3);
  if (kind == 0) return;
  shape.register_bits = kind == 1 ? 8 : static_cast<int32_t>(random.from(2, 24));
  shape.slope = kind == 1 ? 2.0f : random.one_of({0.5f, 1.0f, 2.0f, 3.7f});
}

std::vector<int32_t> draw_bounds(Random& random, int64_t count, int64_t products) {
  std::vector<int32_t> bounds(static_cast<size_t>(count));
  for (int32_t& bound : bounds) {
    const int64_t part = random.from(1, 20);
    bound = random.once_in(6) ? random.one_of({INT32_MIN, INT32_MAX})
                              : static_cast<int32_t>(random.from(-products, products) / part);
  }
  return bounds;
}

// `runs` runs of `run` products each, as the channels at each place of a kernel.
std::shared_ptr<Layer> draw_layer(Random& random, int64_t outputs, int64_t runs, int64_t run, int64_t groups,
                                  int64_t thresholds, bool out_bits) {
  pb_binary shape{};
  shape.outputs = outputs, shape.products = runs * run, shape.groups = groups;
  shape.row_bytes = runs * ((run + 7) / 8);
  const int64_t width = outputs * groups;
  draw_register(random, shape);
  shape.activation = static_cast<int32_t>(random.from(0, 3));
  shape.scales = width;
  shape.biases = random.once_in(2) ? width : 0;
  shape.thresholds = random.once_in(2) ? thresholds : 0;
  shape.bounds = out_bits ? width : 0;
  std::vector<uint8_t> flip(static_cast<size_t>(shape.bounds));
  for (uint8_t& f : flip) f = static_cast<uint8_t>(random.from(0, 1));
  auto layer = std::make_shared<Layer>(Layer{
      shape, out_bits, Guarded(random.bits(width, runs, run)), Guarded(random.normals(width)),
      Guarded(random.normals(shape.biases)), Guarded(random.normals(shape.thresholds)),
      Guarded(draw_bounds(random, shape.bounds, shape.products)),
      Guarded(draw_bounds(random, shape.bounds, shape.products)), Guarded(flip)});
  layer->shape.scale = layer->scale.floats();
  if (shape.biases) layer->shape.bias = layer->bias.floats();
  if (shape.thresholds) layer->shape.threshold = layer->threshold.floats();
  if (out_bits) {
    layer->shape.low = layer->low.ints();
    layer->shape.high = layer->high.ints();
    layer->shape.flip = layer->flip.data();
  }
  return layer;
}

struct Input {
  Guarded floats, bits;
  bool as_bits;
};

// What follows rows of floats, or nothing.
struct After {
  Guarded gain, shift, other;
  bool signs;
  int32_t contracted, activation;

  pb_following with(Outputs& outputs, int64_t rows, int64_t width) const {
    const auto there = [](const Guarded& values) { return values.size() ? values.floats() : nullptr; };
    return {there(gain), there(shift), there(other), signs ? outputs.bytes(rows * ((width + 7) / 8)) : nullptr,
            contracted, activation};
  }
};

std::shared_ptr<After> draw_after(Random& random, int64_t rows, int64_t width, bool out_bits) {
  if (out_bits || random.once_in(2)) return nullptr;
  const int64_t line = random.once_in(2) ? width : 0, added = random.once_in(2) ? rows * width : 0;
  return std::make_shared<After>(After{Guarded(random.normals(line)), Guarded(random.normals(line)),
                                       Guarded(random.normals(added)), random.once_in(2),
                                       static_cast<int32_t>(random.from(0, 1)),
                                       random.one_of<int32_t>({PB_IDENTITY, PB_RELU, PB_HARDTANH})});
}

Case sized_linear_case(Random& random, int64_t rows, int64_t outputs, int64_t products) {
  const bool in_bits = random.once_in(3), out_bits = random.once_in(3);
  const auto layer = draw_layer(random, outputs, 1, products, 1, products, out_bits);
  const int64_t stride = products + (random.once_in(3) ? random.from(1, 9) : 0);
  const auto input = std::make_shared<Input>(
      Input{Guarded(random.inputs((rows - 1) * stride + products)), Guarded(random.bits(rows, 1, products)), in_bits});
  const int threads = static_cast<int>(random.from(1, 3));
  const auto after = draw_after(random, rows, outputs, out_bits);
  const auto call = [=](Outputs& outputs) {
    const int64_t wide = layer->shape.outputs, size = rows * (out_bits ? (wide + 7) / 8 : wide);
    float* out = out_bits ? nullptr : outputs.floats(size);
    uint8_t* bits = out_bits ? outputs.bytes(size) : nullptr;
    const pb_following then = after ? after->with(outputs, rows, wide) : pb_following{};
    return layer->with_panels([&](const pb_binary& made) {
      return pb_binary_linear(&made, in_bits ? nullptr : input->floats.floats(), stride,
                              in_bits ? input->bits.data() : nullptr, rows,
                              in_bits ? made.row_bytes : products, out, bits, size, after ? &then : nullptr,
                              threads);
    });
  };
  return {layer->about() + text({{"rows", rows}, {"stride", stride}, {"in_bits", in_bits}}), call};
}

Case linear_case(Random& random) {
  const int64_t rows = random.size(10, 70), outputs = random.size(100, 300);
  return sized_linear_case(random, rows, outputs, random.size(300, 2600));
}

// As many products as there may be, so that every count that can overflow has its chance.
Case long_linear_case(Random& random) {
  const int64_t rows = random.from(1, 5), outputs = random.from(1, 20);  // one after the other, on any machine
  return sized_linear_case(random, rows, outputs, random.from(2000, 65000));
}

Case conv_case(Random& random) {
  const int64_t groups = random.once_in(4) ? random.from(2, 3) : 1;
  const bool in_bits = groups == 1 && random.once_in(3), out_bits = groups == 1 && random.once_in(3);
  const Window window = draw_window(random, groups, in_bits);
  pb_window w = window.shape;
  const int64_t channels = w.channels / groups, outputs = random.size(70, 140);
  const auto layer = draw_layer(random, outputs, w.kernel_h * w.kernel_w, channels, groups, w.channels, out_bits);
  const auto input = std::make_shared<Input>(
      Input{Guarded(random.inputs(in_bits ? 1 : w.in_size)),
            Guarded(random.bits(in_bits ? w.batch * w.height * w.width : 0, 1, w.channels)), in_bits});
  w.out_size = window.out_positions * (out_bits ? (outputs + 7) / 8 : outputs * groups);
  const int threads = static_cast<int>(random.from(1, 3));
  const auto after = draw_after(random, window.out_positions, outputs * groups, out_bits);
  const auto call = [=](Outputs& written) {
    float* out = out_bits ? nullptr : written.floats(w.out_size);
    uint8_t* bits = out_bits ? written.bytes(w.out_size) : nullptr;
    const pb_following then =
        after ? after->with(written, window.out_positions, outputs * groups) : pb_following{};
    return layer->with_panels([&](const pb_binary& made) {
      return pb_binary_conv(&made, &w, in_bits ? nullptr : input->floats.floats(),
                            in_bits ? input->bits.data() : nullptr, out, bits, after ? &then : nullptr,
                            threads);
    });
  };
  return {layer->about() + window.about + text({{"in_bits", in_bits}}), call};
}

// A layer whose panels are rows of bits, one for each place of the window.
Case depthwise_case(Random& random) {
  const bool in_bits = random.once_in(3), out_bits = random.once_in(2);
  const Window window = draw_window(random, 1, in_bits);
  pb_window w = window.shape;
  const int64_t taps = w.kernel_h * w.kernel_w, bytes = (w.channels + 7) / 8;
  const auto layer = draw_layer(random, w.channels, taps, 1, 1, w.channels, out_bits);
  const auto panels = std::make_shared<Guarded>(random.bits(taps, 1, w.channels));
  layer->shape.outputs = 1, layer->shape.groups = w.channels;
  layer->shape.panels = panels->data(), layer->shape.panel_bytes = taps * bytes;
  const auto input = std::make_shared<Input>(
      Input{Guarded(random.inputs(in_bits ? 1 : w.in_size)),
            Guarded(random.bits(in_bits ? w.batch * w.height * w.width : 0, 1, w.channels)), in_bits});
  w.out_size = window.out_positions * (out_bits ? bytes : w.channels);
  const int threads = static_cast<int>(random.from(1, 3));
  const auto after = draw_after(random, window.out_positions, w.channels, out_bits);
  const auto call = [=](Outputs& written) {
    float* out = out_bits ? nullptr : written.floats(w.out_size);
    uint8_t* bits = out_bits ? written.bytes(w.out_size) : nullptr;
    const pb_following then = after ? after->with(written, window.out_positions, w.channels) : pb_following{};
    const int code = pb_depthwise_conv(&layer->shape, &w, in_bits ? nullptr : input->floats.floats(),
                                       in_bits ? input->bits.data() : nullptr, out, bits,
                                       after ? &then : nullptr, threads);
    return panels->intact() ? code : kNotTheSame;
  };
  return {layer->about() + window.about + text({{"in_bits", in_bits}}), call};
}

Case signs_case(Random& random) {
  const int64_t rows = random.from(1, 5), columns = random.size(100, 700);
  const int64_t stride = columns + random.from(0, 3), bytes = (columns + 7) / 8 + random.from(0, 5);
  const auto x = std::make_shared<Guarded>(random.inputs((rows - 1) * stride + columns));
  const auto edges = std::make_shared<Guarded>(random.normals(random.once_in(2) ? columns : 0));
  const auto call = [=](Outputs& outputs) {
    return pb_sign_rows(x->floats(), rows, columns, stride, edges->size() ? edges->floats() : nullptr,
                        outputs.bytes(rows * bytes), bytes, 1);
  };
  return {text({{"rows", rows}, {"columns", columns}, {"stride", stride}, {"bytes", bytes}}), call};
}

}  // namespace

const std::vector<Law> binary_laws = {
    {"binary_linear", 600, linear_case},
    {"binary_long", 60, long_linear_case},
    {"binary_conv", 500, conv_case},
    {"depthwise", 400, depthwise_case},
    {"signs", 200, signs_case}};
