// Attention, one part of the queries of one head after the other.
#include "attention.hpp"

#include <algorithm>
#include <new>

#include "backend.hpp"
#include "parallel.hpp"
#include "sizes.hpp"

namespace proxbit {
namespace {

bool fits(const pb_attention& a) {
  if (a.batch < 0 || a.heads < 1 || a.queries < 1 || a.keys < 1 || a.width < 16 || a.width % 16) return false;
  if (a.run < 1 || (a.lanes != 8 && a.lanes != 16)) return false;
  return countable({a.batch, a.heads, a.queries, a.width}) && countable({a.batch, a.heads, a.keys, a.width}) &&
         countable({a.keys, a.width});
}

const float* at(const float* x, const int64_t* strides, int64_t image, int64_t head) {
  return x + image * strides[0] + head * strides[1];
}

}  // namespace
}  // namespace proxbit

using namespace proxbit;

int pb_attend(const pb_attention* how, const float* q, const float* k, const float* v, float* out, int threads) {
  if (!how || !q || !k || !v || !out || threads < 1 || !fits(*how)) return PB_BAD_ARGUMENT;
  const pb_attention& a = *how;
  const AttentionKernels* kernels = backend().attention;
  // Where heads cannot be shared out evenly, their queries are.
  const int64_t shares = a.heads * a.batch % threads ? std::min<int64_t>(threads, a.queries) : 1;
  const int64_t each = ceil_div(a.queries, shares), row = a.heads * a.width;
  try {
    for_parts(a.batch * a.heads * shares, threads, [&](int64_t part) {
      const int64_t image = part / shares / a.heads, head = part / shares % a.heads, first = part % shares * each;
      if (first >= a.queries) return;
      kernels->attend({at(q, a.q_strides, image, head) + first * a.q_strides[2], at(k, a.k_strides, image, head),
                       at(v, a.v_strides, image, head), out + (image * a.queries + first) * row + head * a.width,
                       a.q_strides[2], a.k_strides[2], a.v_strides[2], row, std::min(each, a.queries - first), a.keys,
                       a.width, a.scale, a.run, a.lanes});
    });
  } catch (const std::bad_alloc&) {
    return PB_NO_MEMORY;
  }
  return PB_OK;
}
