// The operators of linear layers, and the one that is there for its name.
#include "ort_layer.hpp"

namespace proxbit {
namespace ort {
namespace {

int64_t byte_count(int64_t bits) { return (bits + 7) / 8; }

WeightShape linear_shape(const Node& node) {
  const Dims dims = node.integers("shape", {});
  if (dims.size() != 2) refuse("its weight has the shape " + shown(dims) + ", and that of a linear layer has two numbers",
                               kInvalidGraph);
  const WeightShape shape = WeightShape::of(node, dims);
  if (shape.groups != 1) refuse("a linear layer has no groups", kInvalidGraph);
  return shape;
}

// The shape of the output, with the last dimension of the input exchanged.
Dims with_last(Dims dims, int64_t wanted, int64_t last, const char* what) {
  if (dims.empty() || dims.back() != wanted) {
    refuse("this layer takes " + std::to_string(wanted) + " " + what + " in the last dimension, and the input has the shape " +
           shown(dims));
  }
  dims.back() = last;
  return dims;
}

int64_t rows_of(const Dims& dims) { return count_of(Dims(dims.begin(), dims.end() - 1)); }

class BinaryLinear : public Kernel {
 public:
  explicit BinaryLinear(const Node& node) : shape_(linear_shape(node)), layer_(node, shape_) {}

  void run(const Call& call) const override {
    const Tensor floats = call.input(kX), bits = call.input(kXBits);
    if (!floats == !bits) refuse("this layer takes floats or bits, and not both");
    const bool in_bits = !floats, out_bits = layer_.hands_on_bits();
    const Tensor& x = in_bits ? bits : floats;
    const int64_t columns = in_bits ? byte_count(shape_.channels) : shape_.channels;
    const int64_t wide = out_bits ? byte_count(shape_.outputs) : shape_.outputs;
    const Dims dims = with_last(x.dims, columns, wide, in_bits ? "bytes" : "values");
    const Tensor y = call.output(out_bits ? kYBits : kY, dims);
    if (!y) refuse(out_bits ? "this layer gives bits, its second output" : "this layer gives floats, its first output");
    const Threads threads(call, team_);
    check_kernel(pb_binary_linear(&layer_.layer(), in_bits ? nullptr : static_cast<const float*>(x.data), columns,
                                  in_bits ? static_cast<const uint8_t*>(x.data) : nullptr, rows_of(dims), columns,
                                  out_bits ? nullptr : static_cast<float*>(y.data),
                                  out_bits ? static_cast<uint8_t*>(y.data) : nullptr, y.count(), nullptr,
                                  threads.count()));
  }

 private:
  WeightShape shape_;
  BinaryLayer layer_;
};

class WeightLinear : public Kernel {
 public:
  explicit WeightLinear(const Node& node) : shape_(linear_shape(node)), layer_(node, shape_) {}

  void run(const Call& call) const override {
    const Tensor x = call.input(kFloatX);
    if (!x) refuse("this layer has no input");
    const Dims dims = with_last(x.dims, shape_.channels, shape_.outputs, "values");
    const Tensor y = call.output(kY, dims);
    const Threads threads(call, team_);
    check_kernel(pb_weight_linear(&layer_.layer(), static_cast<const float*>(x.data), shape_.channels, rows_of(dims),
                                  shape_.channels, static_cast<float*>(y.data), y.count(), threads.count()));
  }

 private:
  WeightShape shape_;
  WeightLayer layer_;
};

// Gives nothing that anybody reads.
class Notice : public Kernel {
 public:
  void run(const Call& call) const override {
    const Tensor y = call.output(kY, {});
    if (y) *static_cast<float*>(y.data) = 0.0f;
  }
};

}  // namespace

std::unique_ptr<Kernel> make_binary_linear(const Node& node) { return std::make_unique<BinaryLinear>(node); }
std::unique_ptr<Kernel> make_weight_linear(const Node& node) { return std::make_unique<WeightLinear>(node); }
std::unique_ptr<Kernel> make_notice(const Node&) { return std::make_unique<Notice>(); }

}  // namespace ort
}  // namespace proxbit
