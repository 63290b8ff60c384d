// From rows of bits to panels, and back.
#include <cstring>

#include "backend.hpp"
#include "weight_check.hpp"

namespace proxbit {
namespace {

// Where the first byte of an output lies; the next one is kPanelOutputs behind.
int64_t place_of(int64_t output, int64_t inputs) {
  return output / kPanelOutputs * panel_bytes(inputs) + backend().weight.panel_place(output % kPanelOutputs);
}

}  // namespace
}  // namespace proxbit

using namespace proxbit;

size_t pb_weight_bytes(int64_t outputs, int64_t inputs) {
  return is_shape(outputs, inputs) ? static_cast<size_t>(group_bytes(outputs, inputs)) : 0;
}

int pb_make_weights(const uint8_t* rows, int64_t outputs, int64_t inputs, uint8_t* weights) {
  if (!rows || !weights || !is_shape(outputs, inputs)) return PB_BAD_ARGUMENT;
  std::memset(weights, 0, pb_weight_bytes(outputs, inputs));
  for (int64_t n = 0; n < outputs; ++n) {
    uint8_t* column = weights + place_of(n, inputs);
    for (int64_t b = 0; b < ceil_div(inputs, 8); ++b) column[b * kPanelOutputs] = *rows++;
  }
  return PB_OK;
}

int pb_read_weights(const uint8_t* weights, int64_t outputs, int64_t inputs, uint8_t* rows) {
  if (!rows || !weights || !is_shape(outputs, inputs)) return PB_BAD_ARGUMENT;
  for (int64_t n = 0; n < outputs; ++n) {
    const uint8_t* column = weights + place_of(n, inputs);
    for (int64_t b = 0; b < ceil_div(inputs, 8); ++b) *rows++ = column[b * kPanelOutputs];
  }
  return PB_OK;
}
