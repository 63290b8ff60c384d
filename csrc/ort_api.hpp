// The part of ONNX Runtime's C API that the operators use, declared by hand: nothing is linked or included.
//
// ONNX Runtime hands out a table of functions that only ever grows at its end, so a slot means the same in
// every version from the one on that added it; kApiVersion (onnxruntime 1.17) has all of those below. The
// structure of an operator grows in the same way, and its first field says how much of it there is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace proxbit {
namespace ort {

constexpr uint32_t kApiVersion = 17;

struct Status;
struct SessionOptions;
struct Domain;
struct KernelInfo;
struct KernelContext;
struct Value;
struct Shape;
struct Attribute;
struct Operator;

enum Code { kFail = 1, kInvalidArgument = 2, kRuntimeException = 6, kInvalidGraph = 10 };
enum Element { kUndefined = 0, kFloat = 1, kUint8 = 2, kInt32 = 6 };
enum Presence { kRequired = 0, kOptional = 1 };
enum AttributeKind { kInt = 1 };

using Table = const void* const*;

struct ApiBase {
  Table (*get_api)(uint32_t version);
  const char* (*version)();
};

class Api {
 public:
  explicit Api(Table table = nullptr) : table_(table) {}

  Status* new_status(Code code, const char* message) const { return at<0, Status*, int, const char*>(code, message); }
  int code_of(const Status* status) const { return at<1, int, const Status*>(status); }
  const char* message_of(const Status* status) const { return at<2, const char*, const Status*>(status); }
  void release(Status* status) const { at<93, void, Status*>(status); }

  Status* new_domain(const char* name, Domain** out) const { return at<26, Status*, const char*, Domain**>(name, out); }
  Status* add(Domain* domain, const Operator* op) const { return at<27, Status*, Domain*, const Operator*>(domain, op); }
  Status* add(SessionOptions* options, Domain* domain) const {
    return at<28, Status*, SessionOptions*, Domain*>(options, domain);
  }

  Status* get(const KernelInfo* info, const char* name, float* out) const {
    return at<85, Status*, const KernelInfo*, const char*, float*>(info, name, out);
  }
  Status* get(const KernelInfo* info, const char* name, int64_t* out) const {
    return at<86, Status*, const KernelInfo*, const char*, int64_t*>(info, name, out);
  }
  Status* get(const KernelInfo* info, const char* name, char* out, size_t* size) const {
    return at<87, Status*, const KernelInfo*, const char*, char*, size_t*>(info, name, out, size);
  }
  Status* get(const KernelInfo* info, const char* name, int64_t* out, size_t* size) const {
    return at<163, Status*, const KernelInfo*, const char*, int64_t*, size_t*>(info, name, out, size);
  }
  Status* input_count(const KernelInfo* info, size_t* out) const {
    return at<230, Status*, const KernelInfo*, size_t*>(info, out);
  }
  Status* input_name(const KernelInfo* info, size_t index, char* out, size_t* size) const {
    return at<232, Status*, const KernelInfo*, size_t, char*, size_t*>(info, index, out, size);
  }
  Status* node_name(const KernelInfo* info, char* out, size_t* size) const {
    return at<244, Status*, const KernelInfo*, char*, size_t*>(info, out, size);
  }
  Status* constant_input(const KernelInfo* info, size_t index, int* is_constant, const Value** out) const {
    return at<249, Status*, const KernelInfo*, size_t, int*, const Value**>(info, index, is_constant, out);
  }

  Status* input_count(const KernelContext* context, size_t* out) const {
    return at<88, Status*, const KernelContext*, size_t*>(context, out);
  }
  Status* output_count(const KernelContext* context, size_t* out) const {
    return at<89, Status*, const KernelContext*, size_t*>(context, out);
  }
  Status* input(const KernelContext* context, size_t index, const Value** out) const {
    return at<90, Status*, const KernelContext*, size_t, const Value**>(context, index, out);
  }
  Status* output(KernelContext* context, size_t index, const int64_t* dims, size_t count, Value** out) const {
    return at<91, Status*, KernelContext*, size_t, const int64_t*, size_t, Value**>(context, index, dims, count, out);
  }
  Status* parallel_for(const KernelContext* context, void (*body)(void*, size_t), size_t total, size_t batches,
                       void* data) const {
    return at<274, Status*, const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*>(context, body, total,
                                                                                                  batches, data);
  }

  Status* data(Value* value, void** out) const { return at<51, Status*, Value*, void**>(value, out); }
  Status* shape(const Value* value, Shape** out) const { return at<65, Status*, const Value*, Shape**>(value, out); }
  Status* element(const Shape* shape, int* out) const { return at<60, Status*, const Shape*, int*>(shape, out); }
  Status* rank(const Shape* shape, size_t* out) const { return at<61, Status*, const Shape*, size_t*>(shape, out); }
  Status* dims(const Shape* shape, int64_t* out, size_t count) const {
    return at<62, Status*, const Shape*, int64_t*, size_t>(shape, out, count);
  }
  void release(Shape* shape) const { at<99, void, Shape*>(shape); }

  Status* new_attribute(const char* name, const void* data, int length, AttributeKind kind, Attribute** out) const {
    return at<211, Status*, const char*, const void*, int, int, Attribute**>(name, data, length, kind, out);
  }
  Status* read(const Attribute* attribute, AttributeKind kind, void* out, size_t bytes, size_t* read) const {
    return at<272, Status*, const Attribute*, int, void*, size_t, size_t*>(attribute, kind, out, bytes, read);
  }
  void release(Attribute* attribute) const { at<212, void, Attribute*>(attribute); }

 private:
  template <size_t slot, class Result, class... Arguments>
  Result at(Arguments... arguments) const {
    return reinterpret_cast<Result (*)(Arguments...)>(const_cast<void*>(table_[slot]))(arguments...);
  }

  Table table_;
};

// An operator as ONNX Runtime knows it. Those who make a kernel or compute return nullptr, or what went wrong.
struct Operator {
  uint32_t version = kApiVersion;
  void* (*create_unchecked)(const Operator*, Table, const KernelInfo*) = nullptr;
  const char* (*name)(const Operator*) = nullptr;
  const char* (*provider)(const Operator*) = nullptr;  // nullptr: the CPU
  int (*input_type)(const Operator*, size_t) = nullptr;
  size_t (*inputs)(const Operator*) = nullptr;
  int (*output_type)(const Operator*, size_t) = nullptr;
  size_t (*outputs)(const Operator*) = nullptr;
  void (*compute_unchecked)(void*, KernelContext*) = nullptr;
  void (*destroy)(void*) = nullptr;
  int (*input_presence)(const Operator*, size_t) = nullptr;
  int (*output_presence)(const Operator*, size_t) = nullptr;
  int (*input_memory)(const Operator*, size_t) = nullptr;
  int (*variadic_input_arity)(const Operator*) = nullptr;
  int (*variadic_input_homogeneity)(const Operator*) = nullptr;
  int (*variadic_output_arity)(const Operator*) = nullptr;
  int (*variadic_output_homogeneity)(const Operator*) = nullptr;
  Status* (*create)(const Operator*, Table, const KernelInfo*, void**) = nullptr;
  Status* (*compute)(void*, KernelContext*) = nullptr;
  Status* (*infer_shape)(const Operator*, void*) = nullptr;
  int (*start_version)(const Operator*) = nullptr;
  int (*end_version)(const Operator*) = nullptr;
  void* later[4] = {};  // of version 18
};

}  // namespace ort
}  // namespace proxbit
