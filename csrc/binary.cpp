// Binary times binary: the C ABI, and how work is cut into blocks. The arithmetic is in the kernels.
#include "binary.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "activation.hpp"
#include "backend.hpp"
#include "follow.hpp"
#include "parallel.hpp"
#include "scratch.hpp"
#include "window.hpp"

namespace proxbit {

const BinaryKernels& binary_kernels() { return backend().binary; }

int64_t padded_bytes(int64_t row_bytes) { return round_up(row_bytes, binary_kernels().step); }

// Below this much work a second thread costs more than it brings: products, where writing an output takes as
// long as so many of them.
static constexpr int64_t kWorkPerThread = 20'000'000, kOutput = 200;

static bool has_panels(int64_t outputs, int64_t row_bytes) {
  return outputs >= 1 && row_bytes >= 1 && row_bytes <= kMostRowBytes && countable({outputs, kPanel, row_bytes});
}

static size_t panel_bytes(int64_t outputs, int64_t row_bytes) {
  return static_cast<size_t>(binary_kernels().layout.bytes(outputs, padded_bytes(row_bytes)));
}

bool sound(const pb_binary* layer, const float* out, const uint8_t* out_bits, const pb_following* then) {
  if (then && (!out || !sound(*then))) return false;
  if (!layer || layer->groups < 1 || !has_panels(layer->outputs, layer->row_bytes)) return false;
  if (!layer->panels || !layer->scale || (!out == !out_bits)) return false;
  if (layer->products < 1 || layer->products > 8 * layer->row_bytes) return false;
  if (!countable({layer->outputs, kPanel, layer->row_bytes, layer->groups})) return false;
  const int64_t width = layer->outputs * layer->groups;
  const auto panels = static_cast<int64_t>(panel_bytes(layer->outputs, layer->row_bytes));
  if (layer->panel_bytes != layer->groups * panels || layer->scales != width) return false;
  if (!has(layer->bias, layer->biases, width)) return false;
  if (!is_activation(layer->activation)) return false;
  const int bits = layer->register_bits;
  if (bits != 0 && (bits < 2 || bits > 24)) return false;
  return !out_bits || (layer->low && layer->high && layer->flip && layer->bounds == width && layer->groups == 1);
}

Product product_of(const pb_binary& layer, int64_t group) {
  const int64_t bytes = padded_bytes(layer.row_bytes), begin = group * layer.outputs;
  Product product{};
  product.outputs = layer.outputs;
  product.row_bytes = bytes;
  product.offset = 2 * 8 * bytes - layer.products;
  product.panels = layer.panels + static_cast<size_t>(group) * panel_bytes(layer.outputs, layer.row_bytes);
  product.scale = layer.scale + begin;
  product.bias = layer.bias ? layer.bias + begin : nullptr;
  product.register_bits = layer.register_bits;
  product.slope = layer.slope;
  product.activation = layer.activation;
  product.low = layer.low;
  product.high = layer.high;
  product.flip = layer.flip;
  return product;
}

int useful_threads(const pb_binary& layer, int64_t rows, int threads) {
  const int64_t work = rows * layer.outputs * layer.groups * (layer.row_bytes * 8 + kOutput);
  return static_cast<int>(std::clamp<int64_t>(work / kWorkPerThread, 1, std::max(threads, 1)));
}

// Rows that one thread takes at a time: enough to pay for splitting a panel, few enough for L2.
int64_t rows_at_once(int64_t rows, int64_t row_bytes, int threads) {
  constexpr int64_t kTableBytes = 256 * 1024;
  const int64_t tile = binary_kernels().tile, cost = binary_kernels().row_cost * row_bytes;
  const int64_t fits = std::max<int64_t>(32, kTableBytes / cost / tile * tile);
  const int64_t blocks = std::max<int64_t>((rows + fits - 1) / fits, std::min<int64_t>(threads, rows / 16));
  return round_up((rows + blocks - 1) / std::max<int64_t>(blocks, 1), tile);
}

Sink sink_at(const Output& out, int64_t width, int64_t row, int64_t column) {
  const int64_t stride = out.bits ? (width + 7) / 8 : width;
  return {out.values ? out.values + row * stride + column : nullptr, out.bits ? out.bits + row * stride : nullptr,
          stride};
}

namespace {

// A row of bits as the kernels want it: the given bytes, then zeros up to a whole step.
void copy_row(const uint8_t* from, int64_t bytes, uint8_t* to, int64_t padded) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
  std::memset(to + bytes, 0, static_cast<size_t>(padded - bytes));
}

struct LinearInput {
  const float* x;
  int64_t stride;
  const float* threshold;
  const uint8_t* bits;
};

void linear_rows(const pb_binary& layer, const LinearInput& input, uint8_t* to, int64_t first,
                 int64_t count) {
  const BinaryKernels& kernels = binary_kernels();
  const int64_t padded = padded_bytes(layer.row_bytes);
  for (int64_t r = 0; r < count; ++r, to += padded) {
    if (input.bits) {
      copy_row(input.bits + (first + r) * layer.row_bytes, layer.row_bytes, to, padded);
    } else {
      kernels.sign_row(input.x + (first + r) * input.stride, layer.products, input.threshold, to, padded);
    }
  }
}

// Few rows: each thread takes some panels and looks at every row.
void linear_by_panels(const pb_binary& layer, const LinearInput& input, int64_t rows, const Output& out,
                      int threads) {
  const Product product = product_of(layer, 0);
  static thread_local Scratch scratch;
  uint8_t* bits = scratch.take<uint8_t>(static_cast<size_t>(rows * product.row_bytes));
  linear_rows(layer, input, bits, 0, rows);
  const int64_t panels = panels_of(layer.outputs), parts = std::min<int64_t>(threads, panels);
  for_parts(parts, threads, [&](int64_t part) {
    binary_kernels().multiply(product, bits, rows, panels * part / parts, panels * (part + 1) / parts,
                              sink_at(out, layer.outputs, 0, 0));
  });
  if (out.then) follow(*out.then, out.values, rows, layer.outputs, threads);
}

// Many rows: each thread takes a block of rows through all panels.
void linear_by_rows(const pb_binary& layer, const LinearInput& input, int64_t rows, const Output& out,
                    int threads) {
  const Product product = product_of(layer, 0);
  const int64_t block = rows_at_once(rows, product.row_bytes, threads);
  for_parts((rows + block - 1) / block, threads, [&](int64_t part) {
    static thread_local Scratch scratch;
    const int64_t first = part * block, count = std::min(block, rows - first);
    uint8_t* bits = scratch.take<uint8_t>(static_cast<size_t>(count * product.row_bytes));
    linear_rows(layer, input, bits, first, count);
    binary_kernels().multiply(product, bits, count, 0, panels_of(layer.outputs),
                              sink_at(out, layer.outputs, first, 0));
    if (out.then) follow_rows(*out.then, out.values, layer.outputs, first, count);
  });
}

}  // namespace
}  // namespace proxbit

using namespace proxbit;

size_t pb_panel_bytes(int64_t outputs, int64_t row_bytes) {
  return has_panels(outputs, row_bytes) ? panel_bytes(outputs, row_bytes) : 0;
}

int pb_make_panels(const uint8_t* rows, int64_t outputs, int64_t row_bytes, uint8_t* panels) {
  if (!rows || !panels || !has_panels(outputs, row_bytes)) return PB_BAD_ARGUMENT;
  const int64_t padded = padded_bytes(row_bytes);
  const PanelLayout layout = binary_kernels().layout;
  std::memset(panels, 0, panel_bytes(outputs, row_bytes));
  for (int64_t n = 0; n < outputs; ++n)
    for (int64_t b = 0; b < row_bytes; ++b) panels[layout.place(outputs, padded, n, b)] = *rows++;
  return PB_OK;
}

int pb_read_panels(const uint8_t* panels, int64_t outputs, int64_t row_bytes, uint8_t* rows) {
  if (!rows || !panels || !has_panels(outputs, row_bytes)) return PB_BAD_ARGUMENT;
  const int64_t padded = padded_bytes(row_bytes);
  const PanelLayout layout = binary_kernels().layout;
  for (int64_t n = 0; n < outputs; ++n)
    for (int64_t b = 0; b < row_bytes; ++b) *rows++ = panels[layout.place(outputs, padded, n, b)];
  return PB_OK;
}

int pb_sign_rows(const float* x, int64_t rows, int64_t columns, int64_t row_stride,
                 const float* threshold, uint8_t* bits, int64_t row_bytes, int threads) {
  if (rows < 0 || columns < 1 || row_bytes < (columns + 7) / 8) return PB_BAD_ARGUMENT;
  if (rows && (!x || !bits)) return PB_BAD_ARGUMENT;
  if (!countable({rows, columns}) || !countable({rows, row_bytes})) return PB_BAD_ARGUMENT;
  constexpr int64_t kBlock = 64;
  const int64_t blocks = (rows + kBlock - 1) / kBlock;
  const int team = rows * columns < (1 << 20) ? 1 : threads;
  for_parts(blocks, team, [&](int64_t part) {
    for (int64_t r = part * kBlock; r < std::min(rows, (part + 1) * kBlock); ++r)
      binary_kernels().sign_row(x + r * row_stride, columns, threshold, bits + r * row_bytes, row_bytes);
  });
  return PB_OK;
}

int pb_binary_linear(const pb_binary* layer, const float* x, int64_t row_stride, const uint8_t* bits,
                     int64_t rows, int64_t columns, float* out, uint8_t* out_bits, int64_t out_size,
                     const pb_following* then, int threads) try {
  if (!sound(layer, out, out_bits, then) || layer->groups != 1 || rows < 0) return PB_BAD_ARGUMENT;
  if (!has(layer->threshold, layer->thresholds, layer->products)) return PB_BAD_ARGUMENT;
  if (rows == 0) return PB_OK;
  if (!x == !bits || columns != (x ? layer->products : layer->row_bytes)) return PB_BAD_ARGUMENT;
  if (!countable({rows, layer->outputs, layer->row_bytes})) return PB_BAD_ARGUMENT;
  if (row_stride < 0 || !countable({rows, row_stride})) return PB_BAD_ARGUMENT;
  if (out_size != rows * (out ? layer->outputs : (layer->outputs + 7) / 8)) return PB_BAD_ARGUMENT;
  const LinearInput input{x, row_stride, layer->threshold, bits};
  const int team = useful_threads(*layer, rows, threads);
  (rows < 8 * team ? linear_by_panels : linear_by_rows)(*layer, input, rows, {out, out_bits, then}, team);
  return PB_OK;
} catch (const std::bad_alloc&) {
  return PB_NO_MEMORY;
}
