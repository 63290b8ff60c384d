// Threads of whoever calls us: torch's own pool where there is one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "proxbit.h"

namespace proxbit {

void use_team(pb_team team);
void use_team_here(pb_team team);  // for calls from this thread; nullptr: that of all again

// Runs body(part) for every part in [0, parts), on at most `threads` threads.
void for_parts_raw(int64_t parts, int threads, void (*body)(void*, int64_t), void* data);

namespace {  // a copy for each file: they are compiled for different instruction sets

template <class Body>
void for_parts(int64_t parts, int threads, const Body& body) {
  for_parts_raw(
      parts, threads, [](void* data, int64_t part) { (*static_cast<const Body*>(data))(part); },
      const_cast<Body*>(&body));
}

// Work on one value after the other: values of one part, and fewer than these need no second thread.
constexpr int64_t kPart = 16 * 1024;
constexpr int64_t kValuesPerThread = 64 * 1024;

inline int threads_for_values(int64_t values, int threads) {
  return static_cast<int>(std::clamp<int64_t>(values / kValuesPerThread, 1, std::max(threads, 1)));
}

}  // namespace
}  // namespace proxbit
