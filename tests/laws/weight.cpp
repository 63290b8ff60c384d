// Laws of binary weights times float inputs.
#include <memory>

#include "laws.hpp"

namespace {

struct Layer {
  pb_weight shape{};
  Guarded rows, scale, bias;

  std::string about() const {
    return text({{"outputs", shape.outputs}, {"inputs", shape.inputs}, {"groups", shape.groups},
                 {"bias", shape.biases}, {"activation", shape.activation}, {"precision", shape.precision}});
  }

  // Weights are laid out anew on each backend.
  template <class Call>
  int with_weights(const Call& call) const {
    const size_t bytes = pb_weight_bytes(shape.outputs, shape.inputs);
    Guarded weights(bytes * static_cast<size_t>(shape.groups));
    const int64_t group_rows = shape.outputs * ((shape.inputs + 7) / 8);
    for (int64_t g = 0; g < shape.groups; ++g) {
      const int code = pb_make_weights(rows.data() + g * group_rows, shape.outputs, shape.inputs,
                                       weights.data() + static_cast<size_t>(g) * bytes);
      if (code) return code;
    }
    if (!reads_back(weights, bytes)) return kNotTheSame;
    pb_weight layer = shape;
    layer.weights = weights.data();
    layer.weight_bytes = static_cast<int64_t>(weights.size());
    const int code = call(layer);
    return weights.intact() ? code : kNotTheSame;
  }

  // Whether the layout holds the very rows that it was made of.
  bool reads_back(const Guarded& weights, size_t bytes) const {
    Guarded again(rows.size());
    const int64_t group_rows = shape.outputs * ((shape.inputs + 7) / 8);
    for (int64_t g = 0; g < shape.groups; ++g) {
      pb_read_weights(weights.data() + static_cast<size_t>(g) * bytes, shape.outputs, shape.inputs,
                      again.data() + g * group_rows);
    }
    return again.intact() && !std::memcmp(again.data(), rows.data(), rows.size());
  }
};

std::shared_ptr<Layer> draw_layer(Random& random, int64_t outputs, int64_t inputs, int64_t groups) {
  pb_weight shape{};
  shape.outputs = outputs, shape.inputs = inputs, shape.groups = groups;
  shape.scales = outputs * groups;
  shape.biases = random.once_in(2) ? shape.scales : 0;
  shape.activation = static_cast<int32_t>(random.from(0, 3));
  shape.precision = random.once_in(2) ? PB_INPUT8 : PB_EXACT;
  auto layer = std::make_shared<Layer>(Layer{shape, Guarded(random.bits(outputs * groups, 1, inputs)),
                                             Guarded(random.normals(shape.scales)),
                                             Guarded(random.normals(shape.biases))});
  layer->shape.scale = layer->scale.floats();
  if (shape.biases) layer->shape.bias = layer->bias.floats();
  return layer;
}

// Inputs row by row, so that a strange value spoils one row and not all.
std::vector<float> draw_rows(Random& random, int64_t rows, int64_t columns, int64_t stride) {
  std::vector<float> all;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<float> row = random.inputs(r + 1 < rows ? stride : columns);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

Case sized_linear_case(Random& random, int64_t rows, int64_t outputs, int64_t inputs) {
  const int64_t groups = random.once_in(4) ? random.from(2, 3) : 1;
  const auto layer = draw_layer(random, outputs, inputs, groups);
  const int64_t columns = inputs * groups, stride = columns + (random.once_in(3) ? random.from(1, 9) : 0);
  const auto x = std::make_shared<Guarded>(draw_rows(random, rows, columns, stride));
  const int threads = static_cast<int>(random.from(1, 3));
  const auto call = [=](Outputs& outputs) {
    const int64_t size = rows * layer->shape.outputs * groups;
    float* out = outputs.floats(size);
    return layer->with_weights([&](const pb_weight& made) {
      return pb_weight_linear(&made, x->floats(), stride, rows, columns, out, size, threads);
    });
  };
  return {layer->about() + text({{"rows", rows}, {"stride", stride}}), call};
}

Case linear_case(Random& random) {
  const int64_t rows = random.size(7, 40), outputs = random.size(70, 300);
  return sized_linear_case(random, rows, outputs, random.size(150, 1400));
}

// Many inputs, so that sums in 16 bits have their chance to overflow.
Case long_linear_case(Random& random) {
  const int64_t rows = random.from(1, 9), outputs = random.from(1, 40);
  return sized_linear_case(random, rows, outputs, random.from(2000, 12000));
}

// Inputs that are bytes already, any of them.
Case bytes_case(Random& random) {
  const int64_t rows = random.size(7, 40), outputs = random.size(70, 140), inputs = random.size(150, 3000);
  const auto layer = draw_layer(random, outputs, inputs, 1);
  const int64_t stride = inputs + random.from(0, 5), quanta = random.once_in(2) ? 1 : rows;
  std::vector<uint8_t> bytes = random.bits(1, 1, 8 * ((rows - 1) * stride + inputs));
  if (random.once_in(4)) bytes.assign(bytes.size(), random.one_of<uint8_t>({0x80, 0x81, 0x7f}));
  const auto x = std::make_shared<Guarded>(bytes);
  const auto quantum = std::make_shared<Guarded>(random.normals(quanta));
  const int threads = static_cast<int>(random.from(1, 3));
  const auto call = [=](Outputs& outputs) {
    const int64_t size = rows * layer->shape.outputs;
    float* out = outputs.floats(size);
    return layer->with_weights([&](const pb_weight& made) {
      return pb_weight_linear8(&made, reinterpret_cast<const int8_t*>(x->data()), stride, rows, inputs,
                               quantum->floats(), quanta, out, size, threads);
    });
  };
  return {layer->about() + text({{"rows", rows}, {"stride", stride}, {"quanta", quanta}}), call};
}

Case rounding_case(Random& random) {
  const int64_t rows = random.from(1, 9), columns = random.size(100, 1000), stride = columns + random.from(0, 3);
  const auto x = std::make_shared<Guarded>(draw_rows(random, rows, columns, stride));
  const auto call = [=](Outputs& outputs) {
    int8_t* bytes = reinterpret_cast<int8_t*>(outputs.bytes(rows * columns));
    return pb_round_rows(x->floats(), rows, columns, stride, bytes, outputs.floats(rows), 1);
  };
  return {text({{"rows", rows}, {"columns", columns}, {"stride", stride}}), call};
}

Case conv_case(Random& random) {
  const int64_t groups = random.once_in(4) ? random.from(2, 3) : 1;
  const Window window = draw_window(random, groups, false);
  pb_window w = window.shape;
  const int64_t inputs = w.kernel_h * w.kernel_w * w.channels / groups, outputs = random.size(40, 90);
  const auto layer = draw_layer(random, outputs, inputs, groups);
  const auto x = std::make_shared<Guarded>(random.inputs(w.in_size));
  w.out_size = window.out_positions * outputs * groups;
  const int threads = static_cast<int>(random.from(1, 3));
  const auto call = [=](Outputs& outputs) {
    float* out = outputs.floats(w.out_size);
    return layer->with_weights(
        [&](const pb_weight& made) { return pb_weight_conv(&made, &w, x->floats(), out, threads); });
  };
  return {layer->about() + window.about, call};
}

}  // namespace

const std::vector<Law> weight_laws = {{"weight_linear", 500, linear_case},
                                      {"weight_long", 60, long_linear_case},
                                      {"weight_bytes", 200, bytes_case},
                                      {"rounding", 100, rounding_case},
                                      {"weight_conv", 300, conv_case}};
