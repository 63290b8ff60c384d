// Layers with binary weights and float inputs: from the C ABI to the kernels of an instruction set.
#include "weight.hpp"

#include <cstring>
#include <limits>
#include <new>

#include "backend.hpp"
#include "parallel.hpp"
#include "scratch.hpp"
#include "weight_check.hpp"
#include "weight_quantum.hpp"
#include "weight_window.hpp"
#include "weight_words.hpp"

namespace proxbit {
namespace {

// Up to so many rows are few: with more, one pass for 8 or 16 rows is faster.
constexpr int64_t kFewExactRows = 3;
constexpr int64_t kFewInput8Rows = 5;
constexpr int64_t kMostFewBytes = int64_t{1} << 17;  // so that their sum is a float without a loss
// What one thread multiplies in 150 to 300 us: less is not worth waking others.
constexpr double kProductsForThreads = 2.4e7;
constexpr int64_t kSliceOutputs = 2048;     // their sums stay in an L2 cache
constexpr int64_t kImagesFloats = 1 << 18;  // copied with padding at once: 1 MB

struct LinearRows {
  const float* x;
  int64_t row_stride;
  int64_t inputs;
  int64_t count;

  const float* take(int64_t first, int64_t, int64_t group, int64_t& stride) const {
    stride = row_stride;
    return x + first * row_stride + group * inputs;
  }
};

// Rows of bytes become floats, some at a time: integers of 8 bits are floats without a loss.
struct ByteInputs {
  const int8_t* x;
  int64_t row_stride;
  int64_t inputs;
  int64_t count;
  const float* quanta;
  int64_t quanta_stride;

  const float* take(int64_t first, int64_t some, int64_t group, int64_t& stride) const {
    static thread_local Scratch memory;
    float* floats = memory.take<float>(static_cast<size_t>(some * inputs));
    for (int64_t i = 0; i < some; ++i) {
      const int8_t* row = x + (first + i) * row_stride + group * inputs;
      for (int64_t k = 0; k < inputs; ++k) floats[i * inputs + k] = static_cast<float>(row[k]);
    }
    stride = inputs;
    return floats;
  }
};

template <class Rows>
void give_quanta(const Rows&, int64_t, Task&) {}
void give_quanta(const ByteInputs& rows, int64_t row, Task& task) {
  task.quanta = rows.quanta + row * rows.quanta_stride;
  task.quanta_stride = rows.quanta_stride;
}

const WeightKernels& kernels_now() { return backend().weight; }

Task group_task(const pb_weight& layer, int64_t group) {
  Task task{};
  task.inputs = layer.inputs;
  task.outputs = layer.outputs;
  task.last = layer.outputs;
  task.panels = layer.weights + group * group_bytes(layer.outputs, layer.inputs);
  task.scale = layer.scale + group * layer.outputs;
  task.bias = layer.bias ? layer.bias + group * layer.outputs : nullptr;
  task.activation = layer.activation;
  task.out_stride = layer.outputs * layer.groups;
  return task;
}

// The outputs of one of `slices` parts, in whole panels.
void take_slice(Task& task, int64_t slice, int64_t slices) {
  const int64_t panels = ceil_div(task.outputs, kPanelOutputs);
  const int64_t last = panels * (slice + 1) / slices * kPanelOutputs;
  task.first = panels * slice / slices * kPanelOutputs;
  task.last = last < task.outputs ? last : task.outputs;
}

uint8_t* work_memory(const Task& task) {
  static thread_local Scratch memory;
  return memory.take<uint8_t>(static_cast<size_t>(rows_memory(kernels_now().vector_bytes, task.last - task.first)));
}

double* totals_memory(const Task& task) {
  static thread_local Scratch memory;
  return memory.take<double>(static_cast<size_t>(round_up(task.last - task.first, kPanelOutputs)));
}

LayerWords layer_words(const pb_weight& layer, int threads) {
  return {layer.weights, layer.outputs, layer.inputs, layer.groups, threads};
}

template <class Rows>
void run_many(const pb_weight& layer, const LayerWords& words, const Rows& rows, float* out, int threads) {
  const WeightKernels& kernels = kernels_now();
  const bool bytes = layer.precision == PB_INPUT8;
  const int64_t lanes = kernels.vector_bytes / (bytes ? 2 : 4), bundles = ceil_div(rows.count, lanes);
  int64_t slices = ceil_div(layer.outputs, kSliceOutputs);
  if (bundles * layer.groups * slices < threads) slices = threads;
  for_parts(bundles * layer.groups * slices, threads, [&](int64_t part) {
    const int64_t group = part / slices % layer.groups, row = part / slices / layer.groups * lanes;
    Task task = group_task(layer, group);
    words.give(group, task);
    take_slice(task, part % slices, slices);
    if (task.first >= task.last) return;
    task.rows = rows.count - row < lanes ? rows.count - row : lanes;
    task.x = rows.take(row, task.rows, group, task.row_stride);
    give_quanta(rows, row, task);
    task.out = out + row * task.out_stride + group * layer.outputs;
    (bytes ? kernels.input8 : kernels.exact)(task, work_memory(task));
  });
}

IntegerRow empty_row(int64_t inputs) {
  static thread_local Scratch values, tables;
  const size_t padded = static_cast<size_t>(round_up(inputs, kPanelInputs));
  IntegerRow row{};
  row.values = values.take<int32_t>(padded);
  row.tables = tables.take<uint8_t>(padded / kNibbleInputs * kNibbleBytes);
  return row;
}

template <class Rows>
void prepare_row(const Rows& rows, int64_t row, int64_t group, int32_t precision, Task& task, IntegerRow& to) {
  task.x = rows.take(row, 1, group, task.row_stride);
  kernels_now().prepare(task.x, task.inputs, precision, to);
}

// Bytes are integers already.
void prepare_row(const ByteInputs& rows, int64_t row, int64_t group, int32_t precision, Task& task, IntegerRow& to) {
  const int8_t* x = rows.x + row * rows.row_stride + group * rows.inputs;
  int32_t magnitude = 0;
  for (int64_t k = 0; k < task.inputs; ++k) {
    to.values[k] = x[k];
    magnitude += x[k] < 0 ? -x[k] : x[k];
  }
  for (int64_t k = task.inputs; k < round_up(task.inputs, kPanelInputs); ++k) to.values[k] = 0;
  to.magnitude = magnitude;
  to.quantum = rows.quanta[row * rows.quanta_stride];
  to.fits = true;
  kernels_now().fill(to, task.inputs, precision);
}

// One row of one group, its outputs shared among the threads.
void run_one(Task& whole, const IntegerRow& row, int32_t precision, int threads) {
  const WeightKernels& kernels = kernels_now();
  if (!row.fits) LayerWords(whole.panels, whole.outputs, whole.inputs, 1, threads).give(0, whole);
  const int64_t slices = row.fits ? threads : ceil_div(whole.outputs, kSliceOutputs) * threads;
  for_parts(slices, threads, [&](int64_t slice) {
    Task task = whole;
    take_slice(task, slice, slices);
    if (task.first >= task.last) return;
    if (row.fits) kernels.planes(task, row, precision, totals_memory(task));
    else kernels.exact(task, work_memory(task));
  });
}

template <class Rows>
void run_few(const pb_weight& layer, const Rows& rows, float* out, int threads) {
  for (int64_t row = 0; row < rows.count; ++row) {
    for (int64_t group = 0; group < layer.groups; ++group) {
      Task task = group_task(layer, group);
      IntegerRow integers = empty_row(task.inputs);
      task.rows = 1;
      task.out = out + row * task.out_stride + group * layer.outputs;
      prepare_row(rows, row, group, layer.precision, task, integers);
      run_one(task, integers, layer.precision, threads);
    }
  }
}

int useful_threads(const pb_weight& layer, int64_t rows, int threads) {
  const double products = static_cast<double>(layer.outputs) * static_cast<double>(layer.inputs) *
                          static_cast<double>(layer.groups) * static_cast<double>(rows);
  return products < kProductsForThreads ? 1 : threads;
}

bool are_few(const pb_weight& layer, int64_t rows) {
  return rows <= (layer.precision == PB_INPUT8 ? kFewInput8Rows : kFewExactRows);
}

void run_window(const pb_weight& layer, const pb_window& window, const float* x, float* out,
                int threads) {
  static thread_local Scratch memory;
  const int64_t size = padded_height(window) * padded_width(window) * window.channels;
  const int64_t at_once = size < kImagesFloats ? kImagesFloats / size : 1;
  const int64_t positions = out_height(window) * out_width(window);
  const bool few = are_few(layer, positions * window.batch);
  threads = useful_threads(layer, positions * window.batch, threads);
  const auto run = [&, words = few ? LayerWords{} : layer_words(layer, threads)](const WindowRows& rows, float* to) {
    if (few) run_few(layer, rows, to, threads);
    else run_many(layer, words, rows, to, threads);
  };
  for (int64_t n = 0; n < window.batch; n += at_once) {
    const int64_t some = window.batch - n < at_once ? window.batch - n : at_once;
    const Images images = padded_images(window, x + n * window.stride_n, some, memory, threads);
    run({window, images, layer.groups, some * positions}, out + n * positions * layer.outputs * layer.groups);
  }
}

template <class Body>
int guarded(const Body& body) {
  try {
    body();
    return PB_OK;
  } catch (const std::bad_alloc&) {
    return PB_NO_MEMORY;
  }
}

// Whether a linear layer takes so many rows, and their output has its room.
bool fits_rows(const pb_weight* layer, int64_t row_stride, int64_t rows, int64_t columns, int64_t out_size,
               int threads) {
  if (!is_layer(layer) || rows < 0 || row_stride < 0 || threads < 1) return false;
  if (!countable({rows, layer->outputs, layer->groups}) || !countable({rows, row_stride})) return false;
  if (!countable({layer->inputs, layer->groups}) || columns != layer->inputs * layer->groups) return false;
  return out_size == rows * layer->outputs * layer->groups;
}

// One row as bytes; returns what 1 stands for.
float round_bytes(const float* x, int64_t columns, int8_t* bytes) {
  const Quantum q(x, columns, most_of(PB_INPUT8));
  if (!q.fits) {
    std::memset(bytes, 0, static_cast<size_t>(columns));
    return largest_bits(x, columns) < kInfinityBits ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  for (int64_t k = 0; k < columns; ++k) bytes[k] = static_cast<int8_t>(nearest(x[k] * q.inverse));
  return static_cast<float>(q.quantum);
}

}  // namespace
}  // namespace proxbit

using namespace proxbit;

int pb_round_rows(const float* x, int64_t rows, int64_t columns, int64_t row_stride, int8_t* bytes,
                  float* quantum, int threads) {
  if (rows < 0 || columns < 1 || row_stride < 0 || threads < 1) return PB_BAD_ARGUMENT;
  if (!countable({rows, row_stride}) || !countable({rows, columns})) return PB_BAD_ARGUMENT;
  if (rows == 0) return PB_OK;
  if (!x || !bytes || !quantum) return PB_BAD_ARGUMENT;
  const int64_t block = ceil_div(kPart, columns);
  return guarded([&] {
    for_parts(ceil_div(rows, block), threads_for_values(rows * columns, threads), [&](int64_t part) {
      for (int64_t r = part * block; r < rows && r < (part + 1) * block; ++r)
        quantum[r] = round_bytes(x + r * row_stride, columns, bytes + r * columns);
    });
  });
}

int pb_weight_linear8(const pb_weight* layer, const int8_t* bytes, int64_t row_stride, int64_t rows,
                      int64_t columns, const float* quantum, int64_t quanta, float* out, int64_t out_size,
                      int threads) {
  if (!fits_rows(layer, row_stride, rows, columns, out_size, threads)) return PB_BAD_ARGUMENT;
  if (rows == 0) return PB_OK;
  if (!bytes || !out || !quantum || (quanta != 1 && quanta != rows)) return PB_BAD_ARGUMENT;
  pb_weight rounded = *layer;
  rounded.precision = PB_INPUT8;
  const ByteInputs all{bytes, row_stride, layer->inputs, rows, quantum, quanta == 1 ? 0 : 1};
  threads = useful_threads(*layer, rows, threads);
  return guarded([&] {
    if (are_few(rounded, rows) && layer->inputs <= kMostFewBytes) run_few(rounded, all, out, threads);
    else run_many(rounded, layer_words(rounded, threads), all, out, threads);
  });
}

int pb_weight_linear(const pb_weight* layer, const float* x, int64_t row_stride, int64_t rows,
                     int64_t columns, float* out, int64_t out_size, int threads) {
  if (!fits_rows(layer, row_stride, rows, columns, out_size, threads)) return PB_BAD_ARGUMENT;
  if (rows == 0) return PB_OK;
  if (!x || !out) return PB_BAD_ARGUMENT;
  threads = useful_threads(*layer, rows, threads);
  const LinearRows all{x, row_stride, layer->inputs, rows};
  return guarded([&] {
    if (are_few(*layer, rows)) run_few(*layer, all, out, threads);
    else run_many(*layer, layer_words(*layer, threads), all, out, threads);
  });
}

int pb_weight_conv(const pb_weight* layer, const pb_window* window, const float* x, float* out,
                   int threads) {
  if (!is_layer(layer) || !fits_window(*layer, window) || threads < 1) return PB_BAD_ARGUMENT;
  if (window->batch == 0) return PB_OK;
  if (!x || !out) return PB_BAD_ARGUMENT;
  return guarded([&] { run_window(*layer, *window, x, out, threads); });
}
