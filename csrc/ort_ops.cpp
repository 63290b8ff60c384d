// The operators of the domain "proxbit", and the function by which ONNX Runtime learns of them.
#include <climits>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <string>

#include "ort_layer.hpp"
#include "proxbit.h"

namespace proxbit {
namespace ort {
namespace {

constexpr int64_t kOldest = 1;  // format of nodes, where a node does not name it
constexpr int64_t kFormat = 1;  // a newer one may mean something else by the same words

// Runs a body and turns what it throws into ONNX Runtime's error.
template <class Body>
Status* guarded(const Api& api, const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const Refusal& refusal) {
    return api.new_status(refusal.code, refusal.why.c_str());
  } catch (const std::bad_alloc&) {
    return api.new_status(kFail, "proxbit: there is not enough memory");
  } catch (const std::exception& error) {
    return api.new_status(kRuntimeException, error.what());
  }
}

// A kernel with the words for its errors.
struct Named {
  Api api;
  std::string place;
  std::unique_ptr<Kernel> kernel;
};

template <class Body>
void with_place(const std::string& place, const Body& body) {
  try {
    body();
  } catch (const Refusal& refusal) {
    throw Refusal{refusal.code, "proxbit: " + place + ": " + refusal.why};
  }
}

using Maker = std::unique_ptr<Kernel> (*)(const Node&);

// One operator: its name, its inputs and outputs as letters (f for floats, u for bytes, i for integers; large
// where it must be there), and who makes its kernels.
struct Kind : Operator {
  const char* title;
  const char* takes;
  const char* gives;
  Maker make;

  Kind(const char* title, const char* takes, const char* gives, Maker make);
};

const Kind& kind_of(const Operator* op) { return *static_cast<const Kind*>(op); }

int element(char letter) {
  switch (letter | 32) {
    case 'f': return kFloat;
    case 'u': return kUint8;
    default: return kInt32;
  }
}

int presence(char letter) { return letter & 32 ? kOptional : kRequired; }

Status* create(const Operator* op, Table table, const KernelInfo* info, void** out) {
  *out = nullptr;
  const Api api(table);
  return guarded(api, [&] {
    const Node node(api, info);
    auto named = std::make_unique<Named>();
    named->api = api;
    named->place = node.name() + " (" + kind_of(op).title + ")";
    with_place(named->place, [&] {
      const int64_t format = node.integer("format", kOldest);
      if (format != kFormat) {
        refuse("it has the format " + std::to_string(format) + ", and this library reads " +
                   std::to_string(kFormat) + ": pip install --upgrade proxbit-runtime",
               kInvalidGraph);
      }
      named->kernel = kind_of(op).make(node);
    });
    *out = named.release();
  });
}

Status* compute(void* kernel, KernelContext* context) {
  const Named& named = *static_cast<const Named*>(kernel);
  return guarded(named.api, [&] {
    with_place(named.place, [&] { named.kernel->run(Call(named.api, context)); });
  });
}

Kind::Kind(const char* title, const char* takes, const char* gives, Maker make)
    : title(title), takes(takes), gives(gives), make(make) {
  name = [](const Operator* op) { return kind_of(op).title; };
  provider = [](const Operator*) -> const char* { return nullptr; };
  inputs = [](const Operator* op) { return std::strlen(kind_of(op).takes); };
  outputs = [](const Operator* op) { return std::strlen(kind_of(op).gives); };
  input_type = [](const Operator* op, size_t i) { return element(kind_of(op).takes[i]); };
  output_type = [](const Operator* op, size_t i) { return element(kind_of(op).gives[i]); };
  input_presence = [](const Operator* op, size_t i) { return presence(kind_of(op).takes[i]); };
  output_presence = [](const Operator* op, size_t i) { return presence(kind_of(op).gives[i]); };
  input_memory = [](const Operator*, size_t) { return 0; };
  variadic_input_arity = variadic_output_arity = [](const Operator*) { return 1; };
  variadic_input_homogeneity = variadic_output_homogeneity = [](const Operator*) { return 1; };
  start_version = [](const Operator*) { return 1; };
  end_version = [](const Operator*) { return INT_MAX; };
  Operator::create = ort::create;
  Operator::compute = ort::compute;
  destroy = [](void* kernel) { delete static_cast<Named*>(kernel); };
}

const Kind* const* all_kinds(size_t& count) {
  // As BinaryInput and WeightInput have them.
  static const Kind binary_linear("BinaryLinear", "fuUFffiiu", "fu", make_binary_linear);
  static const Kind binary_conv("BinaryConv", "fuUFffiiu", "fu", make_binary_conv);
  static const Kind weight_linear("WeightLinear", "FUFf", "F", make_weight_linear);
  static const Kind weight_conv("WeightConv", "FUFf", "F", make_weight_conv);
  // The first node of every file. Where this library is missing, ONNX Runtime's error is its name.
  static const Kind notice("pip_install_proxbit_runtime", "", "F", make_notice);
  static const Kind* const kinds[] = {&binary_linear, &binary_conv, &weight_linear, &weight_conv, &notice};
  count = sizeof(kinds) / sizeof(kinds[0]);
  return kinds;
}

// The slots of the table are declared by hand: what goes in through some of them must come out of others.
void check_slots(const Api& api) {
  Attribute* attribute = nullptr;
  const int64_t written = 0x1234567890abcdef;
  int64_t found = 0;
  size_t bytes = 0;
  check(api, api.new_attribute("proxbit", &written, 1, kInt, &attribute));
  Status* status = api.read(attribute, kInt, &found, sizeof found, &bytes);
  api.release(attribute);
  check(api, status);
  status = api.new_status(kInvalidGraph, "proxbit");
  const bool same = api.code_of(status) == kInvalidGraph && !std::strcmp(api.message_of(status), "proxbit");
  api.release(status);
  if (!same || found != written) refuse("proxbit: this onnxruntime has another C API than the one that is known", kFail);
}

// The domain with all operators. Sessions keep a pointer to it, so it stays; one process has one ONNX Runtime.
Domain* domain_of(Table table) {
  static std::mutex guard;
  static Table known = nullptr;
  static Domain* domain = nullptr;
  const std::lock_guard<std::mutex> lock(guard);
  if (table == known) return domain;
  const Api api(table);
  check_slots(api);
  Domain* fresh = nullptr;
  check(api, api.new_domain("proxbit", &fresh));
  size_t count = 0;
  const Kind* const* kinds = all_kinds(count);
  for (size_t i = 0; i < count; ++i) check(api, api.add(fresh, kinds[i]));
  known = table;
  return domain = fresh;
}

}  // namespace
}  // namespace ort
}  // namespace proxbit

// What ONNX Runtime looks for in a library of operators.
extern "C" PB_API proxbit::ort::Status* RegisterCustomOps(proxbit::ort::SessionOptions* options,
                                                          const proxbit::ort::ApiBase* base) {
  using namespace proxbit::ort;
  const Table table = base->get_api(kApiVersion);
  const Api api(table ? table : base->get_api(1));
  return guarded(api, [&] {
    if (!table) refuse(std::string("proxbit-runtime needs onnxruntime 1.17 or newer, and this is ") + base->version(), kFail);
    check(api, api.add(options, domain_of(table)));
  });
}
