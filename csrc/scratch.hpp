// Memory that a thread keeps between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace proxbit {
namespace {  // a copy for each file: they are compiled for different instruction sets

// Grows and never shrinks; aligned to a cache line. Throws std::bad_alloc.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

  template <class T>
  T* take(size_t count) {
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64 + 64;
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      data_ = std::aligned_alloc(64, bytes);
      if (!data_) throw std::bad_alloc();
      size_ = bytes;
    }
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace
}  // namespace proxbit
