// Numbers for the cases: the same on every machine, so that two machines can compare their answers.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

class Random {
 public:
  Random(uint64_t seed, uint64_t law, uint64_t number) : state_(seed + 0x9e3779b97f4a7c15u * (1000003 * law + number + 1)) {
    for (int i = 0; i < 4; ++i) next();
  }

  // splitmix64
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // A whole number from low to high, both included.
  int64_t from(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  bool once_in(int64_t n) { return from(1, n) == 1; }
  // Mostly small sizes, now and then one of the large.
  int64_t size(int64_t usual, int64_t most) { return once_in(8) ? from(1, most) : from(1, usual); }

  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[from(0, static_cast<int64_t>(values.size()) - 1)];
  }

  // About normal: the sum of four uniform numbers of 16 bits, exact in float.
  float normal() {
    const uint64_t bits = next();
    int32_t sum = -131070;
    for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>(bits >> (16 * i) & 0xffff);
    return static_cast<float>(sum) / 32768.0f;
  }

  float strange() {
    using limits = std::numeric_limits<float>;
    return one_of({0.0f, -0.0f, limits::infinity(), -limits::infinity(), limits::quiet_NaN(),
                   limits::denorm_min(), -1e-38f, limits::max(), -3e30f, 0.5f, -1.0f, 1.0f});
  }

  std::vector<float> normals(int64_t n, float times = 1.0f) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = normal() * times;
    return values;
  }

  // Inputs: as a rule normal, some with zeros, with a value that towers above the others, or strange; and all
  // the same, for the largest sums there can be.
  std::vector<float> inputs(int64_t n) {
    const float size = one_of({1.0f, 1.0f, 1.0f, 1e-20f, 1e-35f, 1e20f});
    std::vector<float> values = normals(n, size);
    const int64_t kind = from(0, 9);
    const auto anywhere = [&] { return static_cast<size_t>(from(0, n - 1)); };
    if (kind == 0) values[anywhere()] = strange();
    if (kind == 1) for (float& v : values) if (once_in(4)) v = strange();
    if (kind == 2) values[anywhere()] *= 1e4f;
    if (kind == 3) for (float& v : values) if (once_in(2)) v = once_in(2) ? 0.0f : -0.0f;
    if (kind == 4) values.assign(values.size(), once_in(2) ? size : -size);
    if (kind == 5 && once_in(3)) values.assign(values.size(), 0.0f);
    return values;
  }

  // Rows of `runs` runs of `run` bits; those behind the last of each run are 0. Some rows are all of one sign.
  std::vector<uint8_t> bits(int64_t rows, int64_t runs, int64_t run) {
    const int64_t bytes = (run + 7) / 8;
    const auto last = static_cast<uint8_t>(255 >> (8 * bytes - run));
    std::vector<uint8_t> values;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t kind = from(0, 7);
      for (int64_t i = 0; i < runs * bytes; ++i) {
        const auto byte = static_cast<uint8_t>(kind == 0 ? 0 : kind == 1 ? 255 : next());
        values.push_back(i % bytes == bytes - 1 ? byte & last : byte);
      }
    }
    return values;
  }

 private:
  uint64_t state_;
};
