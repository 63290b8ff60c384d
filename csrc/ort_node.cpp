#include "ort_node.hpp"

#include <cstring>

namespace proxbit {
namespace ort {
namespace {

constexpr int64_t kMostValues = int64_t{1} << 48;
constexpr size_t kMostDims = 16;
constexpr size_t kMostLetters = 4096;

// What a function of the API reported; nothing where all went well.
std::string report_of(const Api& api, Status* status) {
  if (!status) return "";
  const std::string words = api.message_of(status);
  api.release(status);
  return words.empty() ? "?" : words;
}

bool was_read(const Api& api, Status* status) { return report_of(api, status).empty(); }

[[noreturn]] void refuse_type(const char* name) {
  refuse(std::string("its attribute '") + name + "' has another type than this library reads", kInvalidGraph);
}

std::string without(std::string text, const std::string& name) {
  const size_t place = text.find(name);
  return place == std::string::npos ? text : text.erase(place, name.size());
}

Tensor tensor_of(const Api& api, const Value* value) {
  Tensor tensor;
  if (!value) return tensor;
  Shape* shape = nullptr;
  check(api, api.shape(value, &shape));
  size_t rank = 0;
  Status* status = api.element(shape, &tensor.element);
  if (!status) status = api.rank(shape, &rank);
  if (!status) {
    tensor.dims.resize(rank);
    status = api.dims(shape, tensor.dims.data(), rank);
  }
  api.release(shape);
  check(api, status);
  check(api, api.data(const_cast<Value*>(value), &tensor.data));
  static char nowhere;  // an empty tensor is there, wherever its values are not
  if (!tensor.data) tensor.data = &nowhere;
  return tensor;
}

template <class T>
constexpr int element_of();
template <>
constexpr int element_of<float>() { return kFloat; }
template <>
constexpr int element_of<uint8_t>() { return kUint8; }
template <>
constexpr int element_of<int32_t>() { return kInt32; }

}  // namespace

void check(const Api& api, Status* status) {
  if (!status) return;
  const Refusal refusal{static_cast<Code>(api.code_of(status)), api.message_of(status)};
  api.release(status);
  throw refusal;
}

std::string shown(const Dims& dims) {
  std::string text = "(";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + ")";
}

int64_t count_of(const Dims& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) {
    if (dim < 0 || __builtin_mul_overflow(count, dim, &count) || count > kMostValues)
      refuse("a tensor of shape " + shown(dims) + " is too large");
  }
  return count;
}

std::string Node::name() const {
  size_t size = 0;
  if (!was_read(api_, api_.node_name(info_, nullptr, &size)) || size < 2) return "a node without a name";
  std::string text(size, '\0');
  if (!was_read(api_, api_.node_name(info_, &text[0], &size))) return "a node";
  text.resize(std::strlen(text.c_str()));
  return "the node '" + text + "'";
}

// An attribute that is absent and one of another type fail with the same code, in words that differ between versions
// of ONNX Runtime: those for a name that no node has tell the two apart.
template <class Read>
bool Node::found(const char* name, const Read& read) const {
  static const char nobody[] = "proxbit_no_such_attribute";
  const std::string report = report_of(api_, read(name));
  if (report.empty()) return true;
  if (without(report, name) != without(report_of(api_, read(nobody)), nobody)) refuse_type(name);
  return false;
}

int64_t Node::integer(const char* name, int64_t otherwise) const {
  int64_t value = 0;
  return found(name, [&](const char* n) { return api_.get(info_, n, &value); }) ? value : otherwise;
}

float Node::number(const char* name, float otherwise) const {
  float value = 0;
  return found(name, [&](const char* n) { return api_.get(info_, n, &value); }) ? value : otherwise;
}

std::string Node::word(const char* name, const char* otherwise) const {
  size_t size = 0;
  if (!found(name, [&](const char* n) { return api_.get(info_, n, static_cast<char*>(nullptr), &size); })) return otherwise;
  if (size > kMostLetters) refuse(std::string("its attribute '") + name + "' is too long", kInvalidGraph);
  std::string text(size + 1, '\0');
  check(api_, api_.get(info_, name, &text[0], &size));
  text.resize(std::strlen(text.c_str()));
  return text;
}

Dims Node::integers(const char* name, const Dims& otherwise) const {
  size_t size = 0;
  if (!found(name, [&](const char* n) { return api_.get(info_, n, static_cast<int64_t*>(nullptr), &size); })) return otherwise;
  if (!size) refuse_type(name);  // so ONNX Runtime reads a list of anything else
  if (size > kMostDims) refuse(std::string("its attribute '") + name + "' is too long", kInvalidGraph);
  Dims values(size);
  check(api_, api_.get(info_, name, values.data(), &size));
  return values;
}

int Node::choice(const char* name, const std::vector<const char*>& known) const {
  const std::string given = word(name, known[0]);
  std::string all;
  for (size_t i = 0; i < known.size(); ++i) {
    if (given == known[i]) return static_cast<int>(i);
    all += (i ? ", " : "") + std::string(known[i]);
  }
  refuse(std::string("its attribute '") + name + "' is '" + given + "', and this library knows " + all, kInvalidGraph);
}

bool Node::given(size_t input) const {
  size_t count = 0, size = 0;
  check(api_, api_.input_count(info_, &count));
  if (input >= count) return false;
  check(api_, api_.input_name(info_, input, nullptr, &size));
  return size > 1;  // with the 0 behind the name
}

Tensor Node::constant_tensor(size_t input, const char* what) const {
  int is_constant = 0;
  const Value* value = nullptr;
  check(api_, api_.constant_input(info_, input, &is_constant, &value));
  if (!is_constant || !value) refuse(std::string("its ") + what + " must be constants of the file", kInvalidGraph);
  return tensor_of(api_, value);
}

int64_t Node::constant_length(size_t input, const char* what) const {
  return given(input) ? constant_tensor(input, what).count() : 0;
}

template <class T>
std::vector<T> Node::constant(size_t input, const char* what, int64_t count, Presence presence) const {
  if (!given(input)) {
    if (presence == kOptional) return {};
    refuse(std::string("it has no ") + what, kInvalidGraph);
  }
  const Tensor tensor = constant_tensor(input, what);
  if (tensor.element != element_of<T>())
    refuse(std::string("its ") + what + " have another type than this library reads", kInvalidGraph);
  if (tensor.count() != count) {
    refuse("it has " + std::to_string(tensor.count()) + " " + what + ", and needs " + std::to_string(count), kInvalidGraph);
  }
  const T* values = static_cast<const T*>(tensor.data);
  return std::vector<T>(values, values + count);
}

template std::vector<float> Node::constant(size_t, const char*, int64_t, Presence) const;
template std::vector<uint8_t> Node::constant(size_t, const char*, int64_t, Presence) const;
template std::vector<int32_t> Node::constant(size_t, const char*, int64_t, Presence) const;

Tensor Call::input(size_t index) const {
  size_t count = 0;
  check(api_, api_.input_count(context_, &count));
  const Value* value = nullptr;
  if (index < count) check(api_, api_.input(context_, index, &value));
  return tensor_of(api_, value);
}

Tensor Call::output(size_t index, const Dims& dims) const {
  size_t count = 0;
  check(api_, api_.output_count(context_, &count));
  Value* value = nullptr;
  if (index < count) check(api_, api_.output(context_, index, dims.data(), dims.size(), &value));
  return tensor_of(api_, value);
}

}  // namespace ort
}  // namespace proxbit
