// From panels to words: 48 inputs of one output each, as the kernels for many rows read them.
//
// Turning a layer costs about as much as one row of it, so it is done in each call, and no layer holds its bits twice.
#pragma once

#include <cstring>

#include "backend.hpp"
#include "parallel.hpp"
#include "scratch.hpp"
#include "weight.hpp"

namespace proxbit {
namespace {

typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef uint16_t Pairs __attribute__((vector_size(16)));
typedef uint32_t Quads __attribute__((vector_size(16)));
typedef uint64_t Words __attribute__((vector_size(16)));

#if defined(__clang__)
#define MIX(a, b, V, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX(a, b, V, ...) __builtin_shuffle(a, b, V{__VA_ARGS__})
#endif

// The lower or the upper elements of two vectors, in turns.
inline Pairs low(Bytes a, Bytes b) {
  return reinterpret_cast<Pairs>(MIX(a, b, Bytes, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
}
inline Pairs high(Bytes a, Bytes b) {
  return reinterpret_cast<Pairs>(MIX(a, b, Bytes, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
}
inline Quads low(Pairs a, Pairs b) { return reinterpret_cast<Quads>(MIX(a, b, Pairs, 0, 8, 1, 9, 2, 10, 3, 11)); }
inline Quads high(Pairs a, Pairs b) { return reinterpret_cast<Quads>(MIX(a, b, Pairs, 4, 12, 5, 13, 6, 14, 7, 15)); }
inline Words low(Quads a, Quads b) { return reinterpret_cast<Words>(MIX(a, b, Quads, 0, 4, 1, 5)); }
inline Words high(Quads a, Quads b) { return reinterpret_cast<Words>(MIX(a, b, Quads, 2, 6, 3, 7)); }

#undef MIX

// The words of 16 outputs side by side, from 6 vectors with a byte of each.
inline void turn(const Bytes v[kBlockBytes], uint64_t words[16]) {
  const Pairs first[2] = {low(v[0], v[1]), high(v[0], v[1])}, second[2] = {low(v[2], v[3]), high(v[2], v[3])};
  const Pairs third[2] = {low(v[4], v[5]), high(v[4], v[5])};
  for (int i = 0; i < 2; ++i) {
    const Quads front[2] = {low(first[i], second[i]), high(first[i], second[i])};
    const Quads back[2] = {low(third[i], Pairs{}), high(third[i], Pairs{})};
    for (int j = 0; j < 2; ++j) {
      const Words both[2] = {low(front[j], back[j]), high(front[j], back[j])};
      std::memcpy(words + 8 * i + 4 * j, both, sizeof both);
    }
  }
}

// Which output lies where in a panel.
struct PanelOrder {
  uint8_t output[kPanelOutputs];

  PanelOrder() {
    for (int64_t n = 0; n < kPanelOutputs; ++n) {
      output[backend().weight.panel_place(n)] = static_cast<uint8_t>(n);
    }
  }
};

// 48 inputs of one panel, of which `bytes` bytes of each output are there.
inline void turn_block(const uint8_t* panel, int64_t bytes, const PanelOrder& order, uint64_t* to) {
  for (int64_t half = 0; half < kPanelOutputs; half += 16) {
    Bytes v[kBlockBytes] = {};
    for (int64_t b = 0; b < kBlockBytes && b < bytes; ++b) std::memcpy(&v[b], panel + b * kPanelOutputs + half, 16);
    uint64_t words[16];
    turn(v, words);
    for (int64_t i = 0; i < 16; ++i) to[order.output[half + i]] = words[i];
  }
}

// The words of some groups of a layer, one behind the other, in memory of the thread that asks.
struct LayerWords {
  int64_t stride = 0;  // outputs of a group, in whole panels
  int64_t size = 0;    // words of a group
  uint64_t* words = nullptr;

  LayerWords() = default;
  LayerWords(const uint8_t* panels, int64_t outputs, int64_t inputs, int64_t groups, int threads)
      : stride(round_up(outputs, kPanelOutputs)), size(ceil_div(inputs, kBlockInputs) * stride) {
    static thread_local Scratch memory;
    words = memory.take<uint64_t>(static_cast<size_t>(groups * size));
    const PanelOrder order;
    const int64_t bytes = panel_bytes(inputs) / kPanelOutputs, each = stride / kPanelOutputs;
    for_parts(groups * each, threads, [&](int64_t part) {
      const uint8_t* panel = panels + part * panel_bytes(inputs);
      uint64_t* to = words + part / each * size + part % each * kPanelOutputs;
      for (int64_t b = 0; b < bytes; b += kBlockBytes, to += stride) {
        turn_block(panel + b * kPanelOutputs, bytes - b, order, to);
      }
    });
  }

  void give(int64_t group, Task& task) const {
    task.words = words + group * size;
    task.word_stride = stride;
  }
};

}  // namespace
}  // namespace proxbit
