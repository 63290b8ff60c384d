// From rows of bits to the two layouts of binary weights with float inputs.
#include <cstring>

#include "backend.hpp"
#include "weight_check.hpp"

namespace proxbit {
namespace {

void copy_blocks(const uint8_t* row, int64_t row_bytes, int64_t outputs, uint8_t* blocks) {
  for (int64_t b = 0; b < row_bytes; b += kBlockBytes, blocks += outputs * kBlockBytes) {
    const int64_t some = row_bytes - b < kBlockBytes ? row_bytes - b : kBlockBytes;
    std::memcpy(blocks, row + b, static_cast<size_t>(some));
  }
}

void copy_panel(const uint8_t* row, int64_t row_bytes, uint8_t* panel) {
  for (int64_t b = 0; b < row_bytes; ++b) panel[b * kPanelOutputs] = row[b];
}

}  // namespace
}  // namespace proxbit

using namespace proxbit;

size_t pb_weight_bytes(int64_t outputs, int64_t inputs) {
  return is_shape(outputs, inputs) ? static_cast<size_t>(group_bytes(outputs, inputs)) : 0;
}

int pb_make_weights(const uint8_t* rows, int64_t outputs, int64_t inputs, uint8_t* weights) {
  if (!rows || !weights || !is_shape(outputs, inputs)) return PB_BAD_ARGUMENT;
  const int64_t row_bytes = ceil_div(inputs, 8);
  uint8_t* panels = weights + blocks_bytes(outputs, inputs);
  std::memset(weights, 0, pb_weight_bytes(outputs, inputs));
  for (int64_t n = 0; n < outputs; ++n, rows += row_bytes) {
    copy_blocks(rows, row_bytes, outputs, weights + n * kBlockBytes);
    copy_panel(rows, row_bytes,
               panels + n / kPanelOutputs * panel_bytes(inputs) + backend().weight.panel_place(n % kPanelOutputs));
  }
  return PB_OK;
}

int pb_read_weights(const uint8_t* weights, int64_t outputs, int64_t inputs, uint8_t* rows) {
  if (!rows || !weights || !is_shape(outputs, inputs)) return PB_BAD_ARGUMENT;
  const uint8_t* panels = weights + blocks_bytes(outputs, inputs);
  for (int64_t n = 0; n < outputs; ++n) {
    const uint8_t* panel = panels + n / kPanelOutputs * panel_bytes(inputs);
    const uint8_t* column = panel + backend().weight.panel_place(n % kPanelOutputs);
    for (int64_t b = 0; b < ceil_div(inputs, 8); ++b) *rows++ = column[b * kPanelOutputs];
  }
  return PB_OK;
}
