// Memory that ends where a page without access begins: whoever reads or writes behind it is stopped, on any
// machine and under emulation.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

constexpr uint8_t kCanary = 0xa5;

class Guarded {
 public:
  explicit Guarded(size_t bytes) : size_(bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    inside_ = (bytes / page + 2) * page;  // a page or more for the canaries in front
    start_ = static_cast<uint8_t*>(
        mmap(nullptr, inside_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (start_ == MAP_FAILED || mprotect(start_ + inside_, page, PROT_NONE)) {
      std::perror("no memory for a case");
      std::abort();
    }
    whole_ = inside_ + page;
    std::memset(start_, kCanary, inside_);
  }
  template <class T>
  explicit Guarded(const std::vector<T>& values) : Guarded(values.size() * sizeof(T)) {
    if (!values.empty()) std::memcpy(data(), values.data(), size_);
  }
  Guarded(Guarded&& other) noexcept
      : start_(std::exchange(other.start_, nullptr)), inside_(other.inside_), whole_(other.whole_), size_(other.size_) {}
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() {
    if (start_) munmap(start_, whole_);
  }

  uint8_t* data() const { return start_ + inside_ - size_; }
  size_t size() const { return size_; }
  float* floats() const { return reinterpret_cast<float*>(data()); }
  int32_t* ints() const { return reinterpret_cast<int32_t*>(data()); }

  // Whether nothing was written in front of it.
  bool intact() const {
    for (const uint8_t* at = start_; at < data(); ++at)
      if (*at != kCanary) return false;
    return true;
  }

 private:
  uint8_t* start_;
  size_t inside_, whole_ = 0, size_;
};
