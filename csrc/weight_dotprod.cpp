// Binary weights times inputs of 8 bits, by dot products of bytes where a layer has few outputs.
//
// The tables of weight_rows.hpp add 96 products with two vectors, but it takes some 1900 instructions to fill them
// for 48 inputs of 16 rows: by that count they win from about 75 outputs on. Here a bit becomes a byte, -1 or 0, one
// instruction adds 16 products, and nothing is prepared but the inputs. Twice the sum over the set bits less the
// sum over all inputs is the sum of +-x.
#include <arm_neon.h>

#include "weight_planes_neon.hpp"
#include "weight_rows.hpp"
#include "weight_vectors_neon.hpp"

namespace proxbit {
namespace {

constexpr int64_t kFewOutputs = 64;
constexpr int64_t kInputsAtOnce = 20 * kBlockInputs;  // of 16 rows: they lie where tables would
constexpr int kRowsAtOnce = 8;
constexpr int64_t kRows = kByteRows<Floats>;
static_assert(kRows * kInputsAtOnce <= kBlockGroups * kTableEntries * Floats::bytes);

// 16 floats as bytes.
inline int8x16_t rounded(const float* x, float inverse) {
  int32x4_t four[4];
  for (int i = 0; i < 4; ++i) four[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), inverse));
  const int16x8_t low = vqmovn_high_s32(vqmovn_s32(four[0]), four[1]);
  const int16x8_t high = vqmovn_high_s32(vqmovn_s32(four[2]), four[3]);
  return vqmovn_high_s16(vqmovn_s16(low), high);
}

// Some inputs of one row as bytes, with zeros up to whole blocks. Returns their sum.
inline int32_t round_inputs(const float* x, int64_t count, float inverse, int8_t* to) {
  int32x4_t sums = vdupq_n_s32(0);
  for (int64_t k = 0; k < round_up(count, kBlockInputs); k += 16) {
    float rest[16] = {};
    const int64_t some = count - k;
    if (some < 16 && some > 0) std::memcpy(rest, x + k, static_cast<size_t>(some) * sizeof(float));
    const int8x16_t bytes = rounded(some < 16 ? rest : x + k, inverse);
    vst1q_s8(to + k, bytes);
    sums = vdotq_s32(sums, bytes, vdupq_n_s8(1));
  }
  return vaddvq_s32(sums);
}

// 48 bits as bytes of -1 and 0.
inline void spread(uint64_t bits, int8x16_t masks[3]) {
  const uint8x16_t word = vcombine_u8(vcreate_u8(bits), vdup_n_u8(0));
  const uint8x8_t places = vcreate_u8(0x8040201008040201u);
  for (int i = 0; i < 3; ++i) {
    const uint8x16_t twice = vcombine_u8(vdup_n_u8(static_cast<uint8_t>(2 * i)), vdup_n_u8(static_cast<uint8_t>(2 * i + 1)));
    masks[i] = vreinterpretq_s8_u8(vtstq_u8(vqtbl1q_u8(word, twice), vcombine_u8(places, places)));
  }
}

// The sums of four vectors.
inline int32x4_t across(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d) {
  return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
}

// Takes off the totals of `width` outputs twice what their bits of -1 select, for eight rows.
template <int width>
inline void add_dots(const uint64_t* words, int64_t word_stride, int64_t inputs, const int8_t* x, int32_t* totals) {
  int32x4_t sums[width][kRowsAtOnce];
  for (int i = 0; i < width; ++i)
    for (int r = 0; r < kRowsAtOnce; ++r) sums[i][r] = vdupq_n_s32(0);
  for (int64_t k = 0; k < inputs; k += kBlockInputs, words += word_stride, x += kBlockInputs) {
    int8x16_t masks[width][3];
    for (int i = 0; i < width; ++i) spread(words[i], masks[i]);
#pragma GCC unroll 3
    for (int j = 0; j < 3; ++j)
#pragma GCC unroll 8
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int8x16_t row = vld1q_s8(x + r * kInputsAtOnce + 16 * j);
#pragma GCC unroll 2
        for (int i = 0; i < width; ++i) sums[i][r] = vdotq_s32(sums[i][r], masks[i][j], row);
      }
  }
  for (int i = 0; i < width; ++i, totals += kRows)
    for (int r = 0; r < kRowsAtOnce; r += 4) {
      const int32x4_t four = across(sums[i][r], sums[i][r + 1], sums[i][r + 2], sums[i][r + 3]);
      vst1q_s32(totals + r, vsubq_s32(vld1q_s32(totals + r), vaddq_s32(four, four)));
    }
}

// Some inputs, from k on: bytes, then dot products with every output.
inline void dot_inputs(const Task& task, int64_t k, const ByteRows<kRows>& rows, const RowMemory<Floats::bytes>& memory) {
  const int64_t some = task.inputs - k < kInputsAtOnce ? task.inputs - k : kInputsAtOnce;
  const int64_t outputs = task.last - task.first, stride = task.word_stride;
  int8_t* bytes = reinterpret_cast<int8_t*>(memory.tables);
  int32_t all[kRows] = {};
  for (int64_t r = 0; r < round_up(task.rows, kRowsAtOnce); ++r) {
    int8_t* to = bytes + r * kInputsAtOnce;
    if (r < task.rows) all[r] = round_inputs(task.x + r * task.row_stride + k, some, rows.inverse[r], to);
    else std::memset(to, 0, kInputsAtOnce);
  }
  for (int64_t n = 0; n < outputs; ++n)
    for (int64_t r = 0; r < kRows; ++r) {
      int32_t& total = memory.totals[n * kRows + r];
      total = (k ? total : 0) - all[r];
    }
  const uint64_t* words = task.words + k / kBlockInputs * stride + task.first;
  for (int64_t r = 0; r < task.rows; r += kRowsAtOnce) {
    const int8_t* x = bytes + r * kInputsAtOnce;
    int64_t n = 0;
    for (; n + 2 <= outputs; n += 2)
      add_dots<2>(words + n, stride, some, x, memory.totals + n * kRows + r);
    if (n < outputs) add_dots<1>(words + n, stride, some, x, memory.totals + n * kRows + r);
  }
}

void exact(const Task& task, uint8_t* memory) { exact_task<Floats>(task, memory); }

void input8(const Task& task, uint8_t* bytes) {
  if (task.last - task.first > kFewOutputs) return input8_task<Floats, Shorts>(task, bytes);
  const RowMemory<Floats::bytes> memory(bytes, task.last - task.first);
  const ByteRows<kRows> rows(task);
  for (int64_t k = 0; k < task.inputs; k += kInputsAtOnce) dot_inputs(task, k, rows, memory);
  finish_bytes<Floats>(task, rows, memory, bytes);
}

}  // namespace

extern const WeightKernels dotprod_weight;
const WeightKernels dotprod_weight = {panel_place, Floats::bytes, exact, input8, prepare, fill, planes};

}  // namespace proxbit
