// One node of a model as an operator sees it: attributes and constants when it is made, tensors when it runs.
//
// Whatever does not fit is thrown as a Refusal: one sentence, which ONNX Runtime hands to its caller.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ort_api.hpp"

namespace proxbit {
namespace ort {

struct Refusal {
  Code code;
  std::string why;
};

[[noreturn]] inline void refuse(const std::string& why, Code code = kInvalidArgument) { throw Refusal{code, why}; }

using Dims = std::vector<int64_t>;

std::string shown(const Dims& dims);  // "(1, 3, 32, 32)"
int64_t count_of(const Dims& dims);   // refuses what cannot be counted

// A tensor that ONNX Runtime owns; data is nullptr where an optional one is absent.
struct Tensor {
  void* data = nullptr;
  int element = kUndefined;
  Dims dims;

  explicit operator bool() const { return data != nullptr; }
  int64_t count() const { return count_of(dims); }
};

// While a kernel is made.
class Node {
 public:
  Node(const Api& api, const KernelInfo* info) : api_(api), info_(info) {}

  std::string name() const;
  int64_t integer(const char* name, int64_t otherwise) const;
  float number(const char* name, float otherwise) const;
  std::string word(const char* name, const char* otherwise) const;
  Dims integers(const char* name, const Dims& otherwise) const;

  // The place in `known` of the word that an attribute holds; the first one is the default.
  int choice(const char* name, const std::vector<const char*>& known) const;

  bool given(size_t input) const;
  int64_t constant_length(size_t input, const char* what) const;  // 0 where it is absent
  // A constant of so many values, as a copy; empty where it is optional and absent.
  template <class T>
  std::vector<T> constant(size_t input, const char* what, int64_t count, Presence presence) const;

 private:
  // Whether `read` finds an attribute; refuses one of another type.
  template <class Read>
  bool found(const char* name, const Read& read) const;
  Tensor constant_tensor(size_t input, const char* what) const;

  const Api& api_;
  const KernelInfo* info_;
};

// While a kernel runs.
class Call {
 public:
  Call(const Api& api, KernelContext* context) : api_(api), context_(context) {}

  Tensor input(size_t index) const;
  Tensor output(size_t index, const Dims& dims) const;  // absent where nobody wants it
  const Api& api() const { return api_; }
  const KernelContext* context() const { return context_; }

 private:
  const Api& api_;
  KernelContext* context_;
};

// Throws what a function of the API reported.
void check(const Api& api, Status* status);

}  // namespace ort
}  // namespace proxbit
