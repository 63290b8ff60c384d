// Plays ONNX Runtime's side of its C API, so that our operators can be tried where there is no ONNX Runtime:
// on another processor under qemu, or with sanitizers. It registers the library, makes kernels with attributes
// and constants, runs them, and compares with plain loops.
//
// Usage: ort_host LIBRARY; the status is 0 where all agrees.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "../csrc/ort_api.hpp"

namespace proxbit::ort {
struct Status {
  int code;
  std::string message;
};
struct Domain {
  std::vector<const Operator*> operators;
};
struct SessionOptions {
  Domain* domain = nullptr;
};
struct Shape {
  int element;
  std::vector<int64_t> dims;
};
struct Value {
  Shape shape;
  std::vector<uint8_t> bytes;
};
struct KernelInfo {
  std::map<std::string, std::vector<int64_t>> integers;
  std::map<std::string, std::string> words;
  std::vector<const Value*> inputs;  // nullptr: absent
  size_t first_constant;
};
struct KernelContext {
  std::vector<const Value*> inputs;
  std::vector<Value*> outputs;
};
struct Attribute {
  int64_t value;
};
}  // namespace proxbit::ort

using namespace proxbit::ort;

namespace {

Status* fail(const char* why) { return new Status{1, why}; }

// ------------------------------------------------------------------ the functions of the API, by their slots
Status* new_status(int code, const char* message) { return new Status{code, message}; }
int code_of(const Status* s) { return s->code; }
const char* message_of(const Status* s) { return s->message.c_str(); }
void release_status(Status* s) { delete s; }
Status* new_domain(const char* name, Domain** out) {
  *out = new Domain;
  return std::strcmp(name, "proxbit") ? fail("another domain") : nullptr;
}
Status* add_operator(Domain* d, const Operator* op) { return d->operators.push_back(op), nullptr; }
Status* add_domain(SessionOptions* o, Domain* d) { return o->domain = d, nullptr; }
Status* get_float(const KernelInfo*, const char*, float*) { return fail("no such attribute"); }
Status* get_int(const KernelInfo* info, const char* name, int64_t* out) {
  const auto found = info->integers.find(name);
  if (found == info->integers.end()) return fail("no such attribute");
  return *out = found->second[0], nullptr;
}
Status* get_word(const KernelInfo* info, const char* name, char* out, size_t* size) {
  const auto found = info->words.find(name);
  if (found == info->words.end()) return fail("no such attribute");
  if (out) std::memcpy(out, found->second.c_str(), found->second.size() + 1);
  return *size = found->second.size() + 1, nullptr;
}
Status* get_ints(const KernelInfo* info, const char* name, int64_t* out, size_t* size) {
  const auto found = info->integers.find(name);
  if (found == info->integers.end()) return fail("no such attribute");
  if (out) std::memcpy(out, found->second.data(), 8 * found->second.size());
  return *size = found->second.size(), nullptr;
}
Status* info_inputs(const KernelInfo* info, size_t* out) { return *out = info->inputs.size(), nullptr; }
Status* input_name(const KernelInfo* info, size_t i, char*, size_t* size) {
  return *size = info->inputs[i] || i < info->first_constant ? 2 : 1, nullptr;
}
Status* node_name(const KernelInfo*, char* out, size_t* size) {
  if (out) std::memcpy(out, "node", 5);
  return *size = 5, nullptr;
}
Status* constant(const KernelInfo* info, size_t i, int* is_constant, const Value** out) {
  return *out = info->inputs[i], *is_constant = *out && i >= info->first_constant, nullptr;
}
Status* context_inputs(const KernelContext* c, size_t* out) { return *out = c->inputs.size(), nullptr; }
Status* context_outputs(const KernelContext* c, size_t* out) { return *out = c->outputs.size(), nullptr; }
Status* get_input(const KernelContext* c, size_t i, const Value** out) { return *out = c->inputs[i], nullptr; }
Status* get_output(KernelContext* c, size_t i, const int64_t* dims, size_t rank, Value** out) {
  *out = c->outputs[i];
  if (!*out) return nullptr;
  size_t bytes = (*out)->shape.element == kUint8 ? 1 : 4;
  (*out)->shape.dims.assign(dims, dims + rank);
  for (size_t d = 0; d < rank; ++d) bytes *= static_cast<size_t>(dims[d]);
  return (*out)->bytes.assign(bytes, 0), nullptr;
}
Status* parallel_for(const KernelContext*, void (*body)(void*, size_t), size_t total, size_t, void* data) {
  for (size_t i = 0; i < total; ++i) body(data, i);
  return nullptr;
}
Status* get_data(Value* v, void** out) { return *out = v->bytes.data(), nullptr; }
Status* get_shape(const Value* v, Shape** out) { return *out = new Shape(v->shape), nullptr; }
Status* get_element(const Shape* s, int* out) { return *out = s->element, nullptr; }
Status* get_rank(const Shape* s, size_t* out) { return *out = s->dims.size(), nullptr; }
Status* get_dims(const Shape* s, int64_t* out, size_t n) { return std::memcpy(out, s->dims.data(), 8 * n), nullptr; }
void release_shape(Shape* s) { delete s; }
Status* new_attribute(const char*, const void* data, int, int, Attribute** out) {
  return *out = new Attribute{*static_cast<const int64_t*>(data)}, nullptr;
}
Status* read_attribute(const Attribute* a, int, void* out, size_t, size_t* bytes) {
  return std::memcpy(out, &a->value, 8), *bytes = 8, nullptr;
}
void release_attribute(Attribute* a) { delete a; }

const void* table[400];

template <class Function>
void put(size_t slot, Function function) {
  table[slot] = reinterpret_cast<const void*>(function);
}

void fill_table() {
  put(0, new_status), put(1, code_of), put(2, message_of), put(93, release_status);
  put(26, new_domain), put(27, add_operator), put(28, add_domain);
  put(85, get_float), put(86, get_int), put(87, get_word), put(163, get_ints);
  put(230, info_inputs), put(232, input_name), put(244, node_name), put(249, constant);
  put(88, context_inputs), put(89, context_outputs), put(90, get_input), put(91, get_output);
  put(274, parallel_for), put(51, get_data), put(65, get_shape), put(60, get_element), put(61, get_rank);
  put(62, get_dims), put(99, release_shape), put(211, new_attribute), put(272, read_attribute);
  put(212, release_attribute);
}

// ------------------------------------------------------------------------------------------- what is tried
std::mt19937 random_bits(1);

Value floats(std::vector<int64_t> dims, bool signs) {
  int64_t count = 1;
  for (const int64_t d : dims) count *= d;
  Value v{{kFloat, dims}, std::vector<uint8_t>(static_cast<size_t>(4 * count))};
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) {
    const float x = normal(random_bits);
    reinterpret_cast<float*>(v.bytes.data())[i] = signs ? (x < 0 ? -1.0f : 1.0f) : x;
  }
  return v;
}

const float* values(const Value& v) { return reinterpret_cast<const float*>(v.bytes.data()); }

Value packed(const Value& signs) {
  const size_t count = signs.bytes.size() / 4;
  Value v{{kUint8, {static_cast<int64_t>((count + 7) / 8)}}, std::vector<uint8_t>((count + 7) / 8)};
  for (size_t i = 0; i < count; ++i) v.bytes[i / 8] = static_cast<uint8_t>(v.bytes[i / 8] | (values(signs)[i] > 0) << i % 8);
  return v;
}

struct Case {
  std::string name;
  bool binary, conv;
  int64_t outputs, channels, side, kernel, stride, pad;
};

const Operator* find(const Domain& domain, const std::string& name) {
  for (const Operator* op : domain.operators)
    if (name == op->name(op)) return op;
  return nullptr;
}

// The convolution (or, with one pixel, the linear layer) as plain loops.
std::vector<double> expected(const Case& c, const Value& x, const Value& w, const Value& scale, int64_t places) {
  std::vector<double> out;
  for (int64_t n = 0; n < 2; ++n)
    for (int64_t o = 0; o < c.outputs; ++o)
      for (int64_t py = 0; py < places; ++py)
        for (int64_t px = 0; px < places; ++px) {
          double sum = 0;
          for (int64_t ch = 0; ch < c.channels; ++ch)
            for (int64_t i = 0; i < c.kernel; ++i)
              for (int64_t j = 0; j < c.kernel; ++j) {
                const int64_t y = py * c.stride + i - c.pad, z = px * c.stride + j - c.pad;
                const bool inside = y >= 0 && z >= 0 && y < c.side && z < c.side;
                double v = inside ? values(x)[((n * c.channels + ch) * c.side + y) * c.side + z] : c.binary ? 1 : 0;
                if (c.binary) v = v < 0 ? -1 : 1;
                sum += v * values(w)[((o * c.channels + ch) * c.kernel + i) * c.kernel + j];
              }
          out.push_back(sum * values(scale)[o]);
        }
  return out;
}

int complain(const Case& c, const std::string& why) {
  std::printf("%s, %lldx%lld, kernel %lld: %s\n", c.name.c_str(), static_cast<long long>(c.outputs),
              static_cast<long long>(c.channels), static_cast<long long>(c.kernel), why.c_str());
  return 1;
}

int try_case(const Domain& domain, const Case& c) {
  const Operator* op = find(domain, c.name);
  if (!op) return complain(c, "there is no such operator");
  const int64_t places = (c.side + 2 * c.pad - c.kernel) / c.stride + 1;
  const std::vector<int64_t> linear{2, c.channels}, image{2, c.channels, c.side, c.side};
  const Value x = floats(c.conv ? image : linear, false), w = floats({c.outputs * c.channels * c.kernel * c.kernel}, true);
  const Value scale = floats({c.outputs}, false);
  Value bits = packed(w);
  KernelInfo info{{{"shape", {c.outputs, c.channels}}}, {}, {}, c.binary ? size_t{2} : size_t{1}};
  if (c.conv) {
    info.integers["shape"] = {c.outputs, c.channels, c.kernel, c.kernel};
    info.integers["strides"] = {c.stride, c.stride};
    info.integers["pads"] = {c.pad, c.pad, c.pad, c.pad};
  }
  if (c.binary) info.inputs = {&x, nullptr, &bits, &scale};
  else info.inputs = {&x, &bits, &scale};
  void* kernel = nullptr;
  if (Status* s = op->create(op, table, &info, &kernel)) return complain(c, s->message);
  Value y{{kFloat, {}}, {}};
  KernelContext context{info.inputs, {&y}};
  if (c.binary) context.outputs.push_back(nullptr);
  Status* s = op->compute(kernel, &context);
  op->destroy(kernel);
  if (s) return complain(c, s->message);
  const std::vector<double> wanted = expected(c, x, w, scale, places);
  for (size_t i = 0; i < wanted.size(); ++i)
    if (std::fabs(wanted[i] - values(y)[i]) > 1e-4 * (1 + std::fabs(wanted[i]))) return complain(c, "another output");
  bits.bytes.pop_back(), --bits.shape.dims[0];  // a weight of the wrong length
  s = op->create(op, table, &info, &kernel);
  if (!s || s->message.find("bytes of weights, and needs") == std::string::npos) return complain(c, "taken too short");
  delete s;
  return 0;
}

}  // namespace

int main(int count, char** words) {
  void* library = count == 2 ? dlopen(words[1], RTLD_NOW) : nullptr;
  void* entry = library ? dlsym(library, "RegisterCustomOps") : nullptr;
  if (!entry) return std::printf("cannot open the library: %s\n", count == 2 ? dlerror() : "no name"), 2;
  fill_table();
  const ApiBase base{[](uint32_t version) -> Table { return version <= kApiVersion ? table : nullptr; },
                     [] { return "1.17.0"; }};
  SessionOptions options;
  if (Status* s = reinterpret_cast<Status* (*)(SessionOptions*, const ApiBase*)>(entry)(&options, &base))
    return std::printf("%s\n", s->message.c_str()), 2;
  int wrong = 0, tried = 0;
  for (const int64_t outputs : {1, 7, 40, 70})
    for (const int64_t channels : {1, 8, 33, 64})
      for (const bool binary : {true, false}) {
        const std::string kind = binary ? "Binary" : "Weight";
        wrong += try_case(*options.domain, {kind + "Linear", binary, false, outputs, channels, 1, 1, 1, 0});
        wrong += try_case(*options.domain, {kind + "Conv", binary, true, outputs, channels, 6, 3, 1, 1});
        wrong += try_case(*options.domain, {kind + "Conv", binary, true, outputs, channels, 5, 2, 2, 0});
        tried += 3;
      }
  std::printf("%d layers tried, %d wrong\n", tried, wrong);
  return wrong ? 1 : 0;
}
