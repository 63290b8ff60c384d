// What the kernels for float inputs accept.
#pragma once

#include "activation.hpp"
#include "weight.hpp"
#include "window.hpp"

namespace proxbit {
namespace {

inline bool is_shape(int64_t outputs, int64_t inputs) {
  return outputs >= 1 && outputs <= kMostOutputs && inputs >= 1 && inputs <= kMostInputs;
}

inline bool is_layer(const pb_weight* layer) {
  if (!layer || !layer->weights || !layer->scale) return false;
  if (!is_shape(layer->outputs, layer->inputs) || layer->groups < 1) return false;
  if (!countable({layer->outputs + kPanelOutputs, layer->inputs + 64, layer->groups})) return false;
  const int64_t width = layer->outputs * layer->groups;
  if (layer->weight_bytes != layer->groups * group_bytes(layer->outputs, layer->inputs)) return false;
  if (layer->scales != width || !has(layer->bias, layer->biases, width)) return false;
  return is_activation(layer->activation) &&
         (layer->precision == PB_EXACT || layer->precision == PB_INPUT8);
}

// One axis of a window: sizes below 2^31, and at least one place for the kernel.
inline bool is_axis(int64_t size, int64_t before, int64_t behind, int64_t kernel, int64_t dilation,
                    int64_t step) {
  constexpr int64_t most = int64_t{1} << 31;
  for (const int64_t positive : {size, kernel, dilation, step}) {
    if (positive < 1 || positive > most) return false;
  }
  if (before < 0 || before > most || behind < 0 || behind > most) return false;
  int64_t reach;
  if (__builtin_mul_overflow(dilation, kernel - 1, &reach)) return false;
  return reach < size + before + behind;
}

inline bool fits_window(const pb_weight& layer, const pb_window* w) {
  if (!w || w->batch < 0 || w->channels < 1 || w->channels % layer.groups != 0) return false;
  if (!is_axis(w->height, w->pad_top, w->pad_bottom, w->kernel_h, w->dilation_h, w->step_h) ||
      !is_axis(w->width, w->pad_left, w->pad_right, w->kernel_w, w->dilation_w, w->step_w)) {
    return false;
  }
  const int64_t height = padded_height(*w), width = padded_width(*w);
  const int64_t channels = w->channels / layer.groups;
  if (!countable({w->batch, w->channels, height, width}) ||
      !countable({w->batch, height, width, layer.outputs, layer.groups}) ||
      !countable({w->kernel_h, w->kernel_w, channels})) {
    return false;
  }
  if (w->batch && !holds_floats(*w)) return false;
  if (w->out_size != w->batch * out_height(*w) * out_width(*w) * layer.outputs * layer.groups) return false;
  return layer.inputs == w->kernel_h * w->kernel_w * channels;
}

}  // namespace
}  // namespace proxbit
