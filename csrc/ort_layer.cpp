#include "ort_layer.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "parallel.hpp"

namespace proxbit {
namespace ort {
namespace {

constexpr int64_t kMostSide = int64_t{1} << 31;
const std::vector<const char*> kActivations = {"none", "relu", "gelu", "hardtanh"};  // as pb_activation counts
const std::vector<const char*> kPrecisions = {"exact", "input8"};                    // as pb_precision counts

// The rows of one group as the kernels read them: position by position, channel by channel. A position
// begins with a new byte where `padded`; the stream has a channel's positions side by side.
std::vector<uint8_t> group_rows(const std::vector<uint8_t>& stream, const WeightShape& shape, int64_t group,
                                bool padded) {
  const int64_t rows = shape.group_outputs(), first = group * rows;
  const int64_t step = padded ? (shape.channels + 7) / 8 * 8 : shape.channels;
  const int64_t row_bytes = (step * shape.taps + 7) / 8;
  std::vector<uint8_t> out(static_cast<size_t>(rows * row_bytes));
  if (shape.taps == 1 && shape.channels % 8 == 0) {
    std::memcpy(out.data(), stream.data() + first * row_bytes, out.size());
    return out;
  }
  const uint8_t* from = stream.data();
  for (int64_t r = 0; r < rows; ++r) {
    uint8_t* row = out.data() + r * row_bytes;
    int64_t bit = (first + r) * shape.products();
    for (int64_t c = 0; c < shape.channels; ++c) {
      for (int64_t t = 0, to = c; t < shape.taps; ++t, ++bit, to += step)
        row[to >> 3] = static_cast<uint8_t>(row[to >> 3] | (from[bit >> 3] >> (bit & 7) & 1) << (to & 7));
    }
  }
  return out;
}

std::vector<uint8_t> read_bits(const Node& node, size_t input, const WeightShape& shape) {
  return node.constant<uint8_t>(input, "bytes of weights", shape.packed_bytes(), kRequired);
}

// One bit per output in the file, one byte for the kernels; none of them where the file has none.
std::vector<uint8_t> read_flips(const Node& node, int64_t outputs) {
  const std::vector<uint8_t> bits = node.constant<uint8_t>(kFlip, "bytes of flips", (outputs + 7) / 8, kOptional);
  std::vector<uint8_t> flips(static_cast<size_t>(outputs), 0);
  for (size_t i = 0; i < flips.size() && !bits.empty(); ++i) flips[i] = bits[i / 8] >> (i % 8) & 1;
  return flips;
}

// As many as there are, or one for all of them.
std::vector<float> read_scale(const Node& node, size_t input, int64_t outputs) {
  if (node.constant_length(input, "scales") != 1) return node.constant<float>(input, "scales", outputs, kRequired);
  const float one = node.constant<float>(input, "scales", 1, kRequired)[0];
  return std::vector<float>(static_cast<size_t>(outputs), one);
}

}  // namespace

void Freed::operator()(void* memory) const { std::free(memory); }

Bytes aligned_bytes(size_t count) {
  void* memory = std::aligned_alloc(64, (count + 63) / 64 * 64 + 64);
  if (!memory) throw std::bad_alloc();
  return Bytes(static_cast<uint8_t*>(memory));
}

WeightShape WeightShape::of(const Node& node, const Dims& dims) {
  for (const int64_t dim : dims)
    if (dim < 1 || dim > kMostSide) refuse("its weight has the impossible shape " + shown(dims), kInvalidGraph);
  count_of(dims);
  WeightShape shape{dims[0], dims[1], 1, node.integer("group", 1)};
  for (size_t i = 2; i < dims.size(); ++i) shape.taps *= dims[i];
  if (shape.groups < 1 || shape.outputs % shape.groups) {
    refuse("it has " + std::to_string(shape.outputs) + " outputs for " + std::to_string(shape.groups) + " groups",
           kInvalidGraph);
  }
  return shape;
}

BinaryLayer::BinaryLayer(const Node& node, const WeightShape& shape) {
  const std::vector<uint8_t> stream = read_bits(node, kBits, shape);
  const int64_t outputs = shape.group_outputs(), row_bytes = (shape.channels + 7) / 8 * shape.taps;
  const size_t bytes = pb_panel_bytes(outputs, row_bytes);
  if (!bytes) refuse("its " + std::to_string(shape.products()) + " products per output are too many", kInvalidGraph);
  panels_ = aligned_bytes(bytes * static_cast<size_t>(shape.groups));
  for (int64_t g = 0; g < shape.groups; ++g) {
    const std::vector<uint8_t> rows = group_rows(stream, shape, g, true);
    check_kernel(pb_make_panels(rows.data(), outputs, row_bytes, panels_.get() + static_cast<size_t>(g) * bytes));
  }
  scale_ = read_scale(node, kScale, shape.outputs);
  bias_ = node.constant<float>(kBias, "biases", shape.outputs, kOptional);
  threshold_ = node.constant<float>(kThreshold, "thresholds", shape.channels * shape.groups, kOptional);
  low_ = node.constant<int32_t>(kLow, "lower bounds", shape.outputs, kOptional);
  const Presence bounds = low_.empty() ? kOptional : kRequired;
  high_ = node.constant<int32_t>(kHigh, "upper bounds", shape.outputs, bounds);
  flip_ = read_flips(node, shape.outputs);
  if (hands_on_bits() && shape.groups != 1) refuse("it hands on bits and has groups", kInvalidGraph);
  const int64_t register_bits = node.integer("register_bits", 0);
  if (register_bits != 0 && (register_bits < 2 || register_bits > 24))
    refuse("its register has " + std::to_string(register_bits) + " bits, and not 2 to 24", kInvalidGraph);
  layer_.outputs = outputs;
  layer_.row_bytes = row_bytes;
  layer_.products = shape.products();
  layer_.groups = shape.groups;
  layer_.panels = panels_.get();
  layer_.panel_bytes = static_cast<int64_t>(bytes) * shape.groups;
  layer_.scale = scale_.data();
  layer_.scales = static_cast<int64_t>(scale_.size());
  layer_.bias = bias_.empty() ? nullptr : bias_.data();
  layer_.biases = static_cast<int64_t>(bias_.size());
  layer_.threshold = threshold_.empty() ? nullptr : threshold_.data();
  layer_.thresholds = static_cast<int64_t>(threshold_.size());
  layer_.register_bits = static_cast<int32_t>(register_bits);
  layer_.slope = node.number("slope", 2.0f);
  layer_.activation = node.choice("activation", kActivations);
  if (hands_on_bits()) {
    layer_.low = low_.data();
    layer_.high = high_.data();
    layer_.flip = flip_.data();
    layer_.bounds = shape.outputs;
  }
}

WeightLayer::WeightLayer(const Node& node, const WeightShape& shape) {
  const std::vector<uint8_t> stream = read_bits(node, kFloatBits, shape);
  const int64_t outputs = shape.group_outputs();
  const size_t bytes = pb_weight_bytes(outputs, shape.products());
  if (!bytes) refuse("its " + std::to_string(shape.products()) + " products per output are too many", kInvalidGraph);
  weights_ = aligned_bytes(bytes * static_cast<size_t>(shape.groups));
  for (int64_t g = 0; g < shape.groups; ++g) {
    const std::vector<uint8_t> rows = group_rows(stream, shape, g, false);
    check_kernel(
        pb_make_weights(rows.data(), outputs, shape.products(), weights_.get() + static_cast<size_t>(g) * bytes));
  }
  scale_ = read_scale(node, kFloatScale, shape.outputs);
  bias_ = node.constant<float>(kFloatBias, "biases", shape.outputs, kOptional);
  layer_.outputs = outputs;
  layer_.inputs = shape.products();
  layer_.groups = shape.groups;
  layer_.weights = weights_.get();
  layer_.weight_bytes = static_cast<int64_t>(bytes) * shape.groups;
  layer_.scale = scale_.data();
  layer_.scales = static_cast<int64_t>(scale_.size());
  layer_.bias = bias_.empty() ? nullptr : bias_.data();
  layer_.biases = static_cast<int64_t>(bias_.size());
  layer_.activation = node.choice("activation", kActivations);
  layer_.precision = node.choice("precision", kPrecisions);
}

// ------------------------------------------------------------------------------------------ threads

namespace {

constexpr int kFirstTeam = 16;  // cutting for 16 costs one thread nothing that can be measured, for 64 a multiple

int cores() {
  static const int found = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return found;
}

thread_local const Call* running = nullptr;
thread_local Team* running_team = nullptr;

struct Work {
  void (*work)(void*);
  void* data;
  uint64_t number;  // of all that were ever begun
  std::atomic<int> threads{0};

  void run() {
    static thread_local uint64_t seen = 0;
    if (seen != number) threads.fetch_add(1, std::memory_order_relaxed);
    seen = number;
    work(data);
  }
};

// The team of `parallel.hpp`, made of the threads that the session was given. A session with one thread runs
// all of it here.
void session_team(void (*work)(void*), void* data, unsigned threads, unsigned) {
  static std::atomic<uint64_t> begun{0};
  Work each{work, data, ++begun};
  const auto body = [](void* raw, size_t) { static_cast<Work*>(raw)->run(); };
  Status* failed = running->api().parallel_for(running->context(), body, threads, 0, &each);
  running_team->met(each.threads);
  if (!failed) return;
  running->api().release(failed);
  work(data);
}

}  // namespace

Team::Team() : size_(std::min(cores(), kFirstTeam)) {}

void Team::met(int threads) {
  if (threads >= size()) size_.store(std::min(cores(), 2 * threads), std::memory_order_relaxed);
}

Threads::Threads(const Call& call, Team& team) : team_(team) {
  running = &call;
  running_team = &team;
  use_team_here(session_team);
}

Threads::~Threads() {
  use_team_here(nullptr);
  running = nullptr;
  running_team = nullptr;
}

void check_kernel(int code) {
  if (code == PB_NO_MEMORY) throw std::bad_alloc();
  if (code) refuse("a kernel was called with sizes that do not fit each other");
}

}  // namespace ort
}  // namespace proxbit
