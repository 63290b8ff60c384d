// Accumulators in training that wrap around: the C ABI, and how work is cut. The arithmetic is in the
// loops.
#include "wrap.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "backend.hpp"
#include "parallel.hpp"
#include "proxbit.h"

namespace proxbit {
namespace {

const WrapKernels& kernels() { return backend().wrap; }

bool is_slope(double k) { return k > 0.0 && std::isfinite(k); }

// The constants in double, then rounded: as torch does with numbers beside a tensor.
Register register_of(int32_t bits, double k) {
  const double period = std::ldexp(1.0, bits), half = period / 2;
  const double end = k / (k + 1.0) * half;
  return {static_cast<float>(period), static_cast<float>(1.0 / period), static_cast<float>(k),
          static_cast<float>(k * half), static_cast<float>(end)};
}

template <class Body>
void for_values(int64_t n, int threads, const Body& body) {
  for_parts((n + kPart - 1) / kPart, threads_for_values(n, threads), [&](int64_t part) {
    const int64_t begin = part * kPart;
    body(begin, std::min(kPart, n - begin));
  });
}

}  // namespace
}  // namespace proxbit

using namespace proxbit;

int pb_wrap(const float* z, int64_t n, int32_t bits, double k, float* out, uint8_t* back,
            int64_t* overflows, int threads) {
  if (!z || !out || !overflows || n <= 0 || bits < 2 || bits > 24 || !is_slope(k)) return PB_BAD_ARGUMENT;
  const Register reg = register_of(bits, k);
  std::atomic<int64_t> total{0};
  for_values(n, threads, [&](int64_t begin, int64_t count) {
    total += kernels().forward(reg, z + begin, out + begin, back ? back + begin : nullptr, count);
  });
  *overflows = total;
  return PB_OK;
}

int pb_wrap_pull(const uint8_t* back, const float* g, int64_t n, double k, float* out, int threads) {
  if (!back || !g || !out || n <= 0 || !is_slope(k)) return PB_BAD_ARGUMENT;
  for_values(n, threads, [&](int64_t begin, int64_t count) {
    kernels().backward(back + begin, g + begin, static_cast<float>(-k), out + begin, count);
  });
  return PB_OK;
}
