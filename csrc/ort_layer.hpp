// What the operators share: weights from packed bytes to panels, and the layer that the C ABI takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ort_node.hpp"
#include "proxbit.h"

namespace proxbit {
namespace ort {

// Among how many threads a kernel cuts its work. Nobody tells how many a session has, and cutting for many more than
// those costs time: so it begins with a few, and takes more once all of these came to work at the same layer.
class Team {
 public:
  Team();
  int size() const { return size_.load(std::memory_order_relaxed); }
  void met(int threads);  // so many took part

 private:
  std::atomic<int> size_;
};

// A kernel of one node: made once, run by any number of threads.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(const Call& call) const = 0;

 protected:
  mutable Team team_;
};

// Memory on a whole cache line, as the kernels like their weights.
struct Freed {
  void operator()(void* memory) const;
};
using Bytes = std::unique_ptr<uint8_t, Freed>;
Bytes aligned_bytes(size_t count);

// The shape of a weight: outputs, channels of one group, then the window of a convolution.
struct WeightShape {
  int64_t outputs, channels, taps, groups;

  static WeightShape of(const Node& node, const Dims& shape);  // refuses one that makes no sense
  int64_t products() const { return channels * taps; }
  int64_t group_outputs() const { return outputs / groups; }
  int64_t packed_bytes() const { return (outputs * products() + 7) / 8; }
};

// The inputs of layers with binary inputs (floats or bits come in, never both), and of the others.
enum BinaryInput { kX, kXBits, kBits, kScale, kBias, kThreshold, kLow, kHigh, kFlip, kBinaryInputs };
enum WeightInput { kFloatX, kFloatBits, kFloatScale, kFloatBias, kWeightInputs };
enum Output { kY, kYBits, kBinaryOutputs };

// A layer of binary weights and binary inputs, which owns what its structure points to.
class BinaryLayer {
 public:
  BinaryLayer(const Node& node, const WeightShape& shape);
  const pb_binary& layer() const { return layer_; }
  bool hands_on_bits() const { return !low_.empty(); }

 private:
  Bytes panels_;
  std::vector<float> scale_, bias_, threshold_;
  std::vector<int32_t> low_, high_;
  std::vector<uint8_t> flip_;
  pb_binary layer_{};
};

// A layer of binary weights and float inputs.
class WeightLayer {
 public:
  WeightLayer(const Node& node, const WeightShape& shape);
  const pb_weight& layer() const { return layer_; }

 private:
  Bytes weights_;
  std::vector<float> scale_, bias_;
  pb_weight layer_{};
};

// While it lives, the kernels of this thread run on the threads of ONNX Runtime.
class Threads {
 public:
  Threads(const Call& call, Team& team);
  ~Threads();
  int count() const { return team_.size(); }

 private:
  Team& team_;
};

void check_kernel(int code);  // throws what a kernel reported

std::unique_ptr<Kernel> make_binary_linear(const Node& node);
std::unique_ptr<Kernel> make_weight_linear(const Node& node);
std::unique_ptr<Kernel> make_binary_conv(const Node& node);
std::unique_ptr<Kernel> make_weight_conv(const Node& node);
std::unique_ptr<Kernel> make_notice(const Node& node);

}  // namespace ort
}  // namespace proxbit
