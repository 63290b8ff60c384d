// A law: the same call gives the same bytes on every backend. Each file of laws has cases of one kind.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "../../csrc/proxbit.h"
#include "memory.hpp"
#include "random.hpp"

// What a call on one backend writes to. A case that leaves bytes untouched leaves the same on all of them.
class Outputs {
 public:
  float* floats(int64_t n) { return take(n * 4, true).floats(); }
  uint8_t* bytes(int64_t n) { return take(n, false).data(); }

  // All outputs one behind the other; every NaN is the same, since machines differ in which one they make.
  std::vector<uint8_t> contents() const;
  bool intact() const;
  // Changes one bit, so that a comparison has something to find; false where there is none.
  bool spoil(Random& random);

 private:
  struct Output {
    Guarded memory;
    bool floats;
  };
  Guarded& take(int64_t bytes, bool floats);
  std::deque<Output> all_;
};

// A code for weights that were changed, or that do not read back as they were.
constexpr int kNotTheSame = -1;

// One case: what it is about, in words, and the call itself, which returns a code of pb_error.
struct Case {
  std::string about;
  std::function<int(Outputs&)> call;
};

struct Law {
  const char* name;
  int cases;
  Case (*make)(Random&);
};

extern const std::vector<Law> binary_laws, weight_laws, training_laws;

// Draws for both kinds of convolution (windows.cpp).
struct Window {
  pb_window shape;
  int64_t out_positions;
  std::string about;
};
Window draw_window(Random& random, int64_t groups, bool in_bits);
std::string text(std::initializer_list<std::pair<const char*, int64_t>> named);
