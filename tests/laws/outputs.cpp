#include "laws.hpp"

#include <cmath>

Guarded& Outputs::take(int64_t bytes, bool floats) {
  all_.push_back({Guarded(static_cast<size_t>(bytes)), floats});
  return all_.back().memory;
}

std::vector<uint8_t> Outputs::contents() const {
  std::vector<uint8_t> bytes;
  for (const Output& output : all_) {
    const size_t begin = bytes.size();
    bytes.insert(bytes.end(), output.memory.data(), output.memory.data() + output.memory.size());
    if (!output.floats) continue;
    for (size_t i = begin; i < bytes.size(); i += 4) {
      float value;
      std::memcpy(&value, &bytes[i], 4);
      const uint32_t nan = 0x7fc00000;
      if (std::isnan(value)) std::memcpy(&bytes[i], &nan, 4);
    }
  }
  return bytes;
}

bool Outputs::intact() const {
  for (const Output& output : all_)
    if (!output.memory.intact()) return false;
  return true;
}

bool Outputs::spoil(Random& random) {
  Output& output = all_[static_cast<size_t>(random.from(0, static_cast<int64_t>(all_.size()) - 1))];
  if (output.memory.size() == 0) return false;
  const auto at = static_cast<size_t>(random.from(0, static_cast<int64_t>(output.memory.size()) - 1));
  output.memory.data()[at / 4 * 4] ^= 1;  // the lowest bit of a float
  return true;
}

std::string text(std::initializer_list<std::pair<const char*, int64_t>> named) {
  std::string all;
  for (const auto& [name, value] : named) all += std::string(name) + " " + std::to_string(value) + ", ";
  return all;
}
