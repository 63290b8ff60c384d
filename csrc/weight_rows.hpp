// The kernels for many rows, written once: an instruction set gives its vectors as F (floats) and S (int16), both
// of the same size. A lane is a row, so the order of the sums is the same for vectors of any size.
#pragma once

#include <cstring>
#include <utility>

#include "weight.hpp"
#include "weight_quantum.hpp"

namespace proxbit {
namespace {

// Where the parts of the work memory lie; vectors have `bytes` bytes.
template <int64_t bytes>
struct RowMemory {
  uint8_t* tables;
  uint8_t* lanes;   // kBlockInputs vectors: one input of every row
  uint8_t* sums;    // one vector per output
  int32_t* totals;  // one per row and output

  RowMemory(uint8_t* memory, int64_t outputs)
      : tables(memory),
        lanes(tables + kBlockGroups * kTableEntries * bytes),
        sums(lanes + kBlockInputs * bytes),
        totals(reinterpret_cast<int32_t*>(sums + round_up(outputs, kMostLanes) * bytes)) {}
};

// An entry begins every 64 bytes. Where vectors are smaller, tables share their cache lines, one in the lower
// halves and one in the upper: machines that read two vectors at once do so better from different halves.
constexpr int kEntryShift = 6;
template <int64_t bytes>
constexpr int64_t table_place(int64_t g) {
  constexpr int64_t shared = (int64_t{1} << kEntryShift) / bytes;
  return (g / shared * kTableEntries << kEntryShift) + g % shared * bytes;
}

template <class F>
inline typename F::value load_some(const float* from, int64_t count) {
  if (count >= F::count) return F::load(from);
  float some[F::count] = {};
  for (int64_t i = 0; i < count; ++i) some[i] = from[i];
  return F::load(some);
}

template <class F>
inline void store_some(float* to, int64_t count, typename F::value v) {
  if (count >= F::count) return F::store(to, v);
  float some[F::count];
  F::store(some, v);
  for (int64_t i = 0; i < count; ++i) to[i] = some[i];
}

// As many inputs as rows, turned so that a vector holds one input; what is missing is 0.
template <class F>
inline void load_turned(const Task& task, int64_t row, int64_t k, typename F::value v[F::count]) {
  const int64_t rows = task.rows - row, inputs = task.inputs - k;
  const float* x = task.x + row * task.row_stride + k;
  if (rows >= F::count && inputs >= F::count) return F::load_transposed(x, task.row_stride, v);
  for (int64_t i = 0; i < F::count; ++i) {
    const bool missing = i >= rows || inputs <= 0;
    v[i] = missing ? F::zero() : load_some<F>(x + i * task.row_stride, inputs);
  }
  F::transpose(v);
}

template <class F>
inline void load_lanes(const Task& task, int64_t k, uint8_t* lanes) {
  for (int64_t step = 0; step < kBlockInputs; step += F::count) {
    typename F::value v[F::count];
    load_turned<F>(task, 0, k + step, v);
    for (int64_t i = 0; i < F::count; ++i) F::put(lanes + (step + i) * F::bytes, v[i]);
  }
}

// All signed sums of 6 vectors; bit j of an entry's number is the sign of vector j.
template <class V>
inline void fill_table(const uint8_t* lanes, uint8_t* table) {
  typename V::value a[6][2];
  for (int j = 0; j < 6; ++j) {
    a[j][1] = V::get(lanes + j * V::bytes);
    a[j][0] = V::negative(a[j][1]);
  }
  typename V::value low[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    low[i] = V::add(V::add(a[0][i & 1], a[1][i >> 1 & 1]), a[2][i >> 2]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const auto high = V::add(V::add(a[3][i & 1], a[4][i >> 1 & 1]), a[5][i >> 2]);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) V::put(table + ((i * 8 + j) << kEntryShift), V::add(low[j], high));
  }
}

template <class V>
inline void fill_tables(const uint8_t* lanes, uint8_t* tables) {
  for (int64_t g = 0; g < kBlockGroups; ++g) {
    fill_table<V>(lanes + g * kGroupInputs * V::bytes, tables + table_place<V::bytes>(g));
  }
}

// Field g of a word, times the step between entries; a rotation needs no copy of the word.
template <int g>
inline uint64_t entry_offset(uint64_t word) {
  constexpr int right = (int{kGroupInputs} * g - kEntryShift + 64) % 64;
  constexpr uint64_t mask = (kTableEntries - 1) << kEntryShift;
  if constexpr (right == 0) return word & mask;
  else return (word >> right | word << (64 - right)) & mask;
}

template <class V, int g, int width>
inline void add_group(const uint8_t* tables, const uint64_t* words, typename V::value* sums) {
#pragma GCC unroll 2
  for (int i = 0; i < width; ++i) {
    const uint8_t* entry = tables + table_place<V::bytes>(g) + entry_offset<g>(words[i]);
    sums[i] = V::add(sums[i], V::get(entry));
  }
}

template <class V, int width, int... g>
inline void add_groups(const uint8_t* tables, const uint64_t* words, typename V::value* sums,
                       std::integer_sequence<int, g...>) {
  (add_group<V, g, width>(tables, words, sums), ...);
}

// Adds one block of inputs to the sums of `width` outputs.
template <class V, bool fresh, int width>
inline void add_block(const uint64_t* from, const uint8_t* tables, uint8_t* to) {
  typename V::value sums[width];
  uint64_t words[width];
  for (int i = 0; i < width; ++i) {
    words[i] = from[i];
    sums[i] = fresh ? V::zero() : V::get(to + i * V::bytes);
  }
  add_groups<V, width>(tables, words, sums, std::make_integer_sequence<int, kBlockGroups>());
  for (int i = 0; i < width; ++i) V::put(to + i * V::bytes, sums[i]);
}

// Two outputs at a time: one does not fill the machine, three need more registers than it has.
template <class V, bool fresh>
inline void add_blocks(const uint64_t* words, const uint8_t* tables, uint8_t* sums, int64_t outputs) {
  __asm__("" : "+r"(sums));  // or it is counted from the tables, in longer instructions
  for (; outputs >= 2; outputs -= 2, words += 2, sums += 2 * V::bytes) add_block<V, fresh, 2>(words, tables, sums);
  if (outputs) add_block<V, fresh, 1>(words, tables, sums);
}

template <class V>
inline void add_outputs(const Task& task, int64_t k, bool fresh, const RowMemory<V::bytes>& memory) {
  const int64_t count = task.last - task.first;
  const uint64_t* words = task.words + k / kBlockInputs * task.word_stride + task.first;
  fill_tables<V>(memory.lanes, memory.tables);
  if (fresh) add_blocks<V, true>(words, memory.tables, memory.sums, count);
  else add_blocks<V, false>(words, memory.tables, memory.sums, count);
}

// Scale, bias, activation and the way out for a vector of rows from `row` on; read(n): the sums of output n.
template <class F, class Read>
inline void finish_rows(const Task& task, int64_t row, const Read& read) {
  const int64_t rows = task.rows - row < F::count ? task.rows - row : F::count;
  const int64_t count = task.last - task.first;
  for (int64_t n = 0; n < count; n += F::count) {
    typename F::value v[F::count];
    for (int64_t i = 0; i < F::count; ++i) v[i] = n + i < count ? read(n + i) : F::zero();
    F::transpose(v);
    const int64_t at = task.first + n, some = count - n;
    const auto scale = load_some<F>(task.scale + at, some);
    const auto bias = task.bias ? load_some<F>(task.bias + at, some) : F::zero();
    for (int64_t i = 0; i < rows; ++i) {
      float* to = task.out + (row + i) * task.out_stride + at;
      store_some<F>(to, some, F::finish(v[i], scale, bias, task.activation));
    }
  }
}

template <class F>
inline void exact_task(const Task& task, uint8_t* bytes) {
  const RowMemory<F::bytes> memory(bytes, task.last - task.first);
  for (int64_t k = 0; k < task.inputs; k += kBlockInputs) {
    load_lanes<F>(task, k, memory.lanes);
    add_outputs<F>(task, k, k == 0, memory);
  }
  finish_rows<F>(task, 0, [&](int64_t n) { return F::get(memory.sums + n * F::bytes); });
}

// INPUT8 ----------------------------------------------------------------------------------------

// Of each row what it is divided by, and what stands for 1 after that.
template <int64_t rows>
struct ByteRows {
  alignas(64) float inverse[rows] = {};
  alignas(64) float quantum[rows] = {};
  bool fits[rows];

  explicit ByteRows(const Task& task) {
    for (int64_t i = 0; i < task.rows; ++i) {
      if (task.quanta) take(i, true, 1.0f, task.quanta[i * task.quanta_stride]);
      else measure(i, Quantum(task.x + i * task.row_stride, task.inputs, most_of(PB_INPUT8)));
    }
  }

 private:
  void measure(int64_t row, const Quantum& q) { take(row, q.fits, q.inverse, static_cast<float>(q.quantum)); }
  void take(int64_t row, bool fit, float by, float one) {
    fits[row] = fit;
    inverse[row] = by;
    quantum[row] = one;
  }
};

template <class F>
constexpr int64_t kByteRows = 2 * F::count;  // rows of INPUT8 in a vector

template <class F>
inline void load_bytes(const Task& task, int64_t k, const ByteRows<kByteRows<F>>& rows, uint8_t* lanes) {
  for (int64_t row = 0; row < kByteRows<F>; row += F::count) {
    const auto inverse = F::load(rows.inverse + row);
    for (int64_t step = 0; step < kBlockInputs; step += F::count) {
      typename F::value v[F::count];
      load_turned<F>(task, row, k + step, v);
      for (int64_t i = 0; i < F::count; ++i) {
        F::put_int16(lanes + (step + i) * F::bytes + row * 2, F::multiply(v[i], inverse));
      }
    }
  }
}

// Adds the 16-bit sums to the 32-bit totals.
template <class S>
inline void widen(const RowMemory<S::bytes>& memory, int64_t outputs, bool fresh) {
  for (int64_t n = 0; n < outputs; ++n) {
    S::widen(memory.sums + n * S::bytes, memory.totals + n * S::count, fresh);
  }
}

template <class F, class S>
inline void sum_bytes(const Task& task, const ByteRows<kByteRows<F>>& rows, const RowMemory<F::bytes>& memory) {
  constexpr int64_t kBlocksAtOnce = 32767 / (127 * kBlockInputs);  // before 16 bits overflow
  const int64_t blocks = ceil_div(task.inputs, kBlockInputs);
  for (int64_t b = 0; b < blocks; ++b) {
    load_bytes<F>(task, b * kBlockInputs, rows, memory.lanes);
    add_outputs<S>(task, b * kBlockInputs, b % kBlocksAtOnce == 0, memory);
    if (b % kBlocksAtOnce == kBlocksAtOnce - 1 || b == blocks - 1) {
      widen<S>(memory, task.last - task.first, b < kBlocksAtOnce);
    }
  }
}

template <class F>
inline void redo_exactly(const Task& task, const ByteRows<kByteRows<F>>& rows, uint8_t* bytes) {
  for (int64_t i = 0; i < task.rows; ++i) {
    if (rows.fits[i]) continue;
    Task one = task;
    one.rows = 1;
    one.x += i * task.row_stride;
    one.out += i * task.out_stride;
    exact_task<F>(one, bytes);
  }
}

// From the totals to the outputs. Not in line: beside the tables it would have a worse frame.
template <class F>
[[gnu::noinline]] void finish_bytes(const Task& task, const ByteRows<kByteRows<F>>& rows, const RowMemory<F::bytes>& memory,
                         uint8_t* bytes) {
  for (int64_t row = 0; row < task.rows; row += F::count) {
    const auto quantum = F::load(rows.quantum + row);
    finish_rows<F>(task, row, [&](int64_t n) {
      return F::multiply(F::from_int32(memory.totals + n * kByteRows<F> + row), quantum);
    });
  }
  redo_exactly<F>(task, rows, bytes);
}

template <class F, class S>
inline void input8_task(const Task& task, uint8_t* bytes) {
  const RowMemory<F::bytes> memory(bytes, task.last - task.first);
  const ByteRows<kByteRows<F>> rows(task);
  sum_bytes<F, S>(task, rows, memory);
  finish_bytes<F>(task, rows, memory, bytes);
}

}  // namespace
}  // namespace proxbit
