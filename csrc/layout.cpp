// Sizes and offsets of the structures in proxbit.h, for callers that declare them in another language.
#include <cstddef>
#include <cstring>

#include "proxbit.h"

namespace {

struct Field {
  const char* structure;
  const char* name;
  int64_t offset;
};

#define WHOLE(type) {#type, nullptr, sizeof(type)}
#define FIELD(type, name) {#type, #name, offsetof(type, name)}

constexpr Field kFields[] = {
    WHOLE(pb_binary),
    FIELD(pb_binary, outputs), FIELD(pb_binary, row_bytes), FIELD(pb_binary, products),
    FIELD(pb_binary, groups), FIELD(pb_binary, panels), FIELD(pb_binary, panel_bytes),
    FIELD(pb_binary, scale), FIELD(pb_binary, scales), FIELD(pb_binary, bias), FIELD(pb_binary, biases),
    FIELD(pb_binary, threshold), FIELD(pb_binary, thresholds), FIELD(pb_binary, register_bits),
    FIELD(pb_binary, slope), FIELD(pb_binary, activation), FIELD(pb_binary, low), FIELD(pb_binary, high),
    FIELD(pb_binary, flip), FIELD(pb_binary, bounds),
    WHOLE(pb_window),
    FIELD(pb_window, batch), FIELD(pb_window, channels), FIELD(pb_window, height), FIELD(pb_window, width),
    FIELD(pb_window, stride_n), FIELD(pb_window, stride_c), FIELD(pb_window, stride_h),
    FIELD(pb_window, stride_w), FIELD(pb_window, kernel_h), FIELD(pb_window, kernel_w),
    FIELD(pb_window, step_h), FIELD(pb_window, step_w), FIELD(pb_window, dilation_h),
    FIELD(pb_window, dilation_w), FIELD(pb_window, pad_top), FIELD(pb_window, pad_bottom),
    FIELD(pb_window, pad_left), FIELD(pb_window, pad_right), FIELD(pb_window, pad_bit),
    FIELD(pb_window, in_size), FIELD(pb_window, out_size),
    WHOLE(pb_following),
    FIELD(pb_following, gain), FIELD(pb_following, shift), FIELD(pb_following, other),
    FIELD(pb_following, bits), FIELD(pb_following, contracted), FIELD(pb_following, activation),
    WHOLE(pb_weight),
    FIELD(pb_weight, outputs), FIELD(pb_weight, inputs), FIELD(pb_weight, groups),
    FIELD(pb_weight, weights), FIELD(pb_weight, weight_bytes), FIELD(pb_weight, scale),
    FIELD(pb_weight, scales), FIELD(pb_weight, bias), FIELD(pb_weight, biases),
    FIELD(pb_weight, activation), FIELD(pb_weight, precision),
    WHOLE(pb_attention),
    FIELD(pb_attention, batch), FIELD(pb_attention, heads), FIELD(pb_attention, queries),
    FIELD(pb_attention, keys), FIELD(pb_attention, width), FIELD(pb_attention, q_strides),
    FIELD(pb_attention, k_strides), FIELD(pb_attention, v_strides), FIELD(pb_attention, scale),
    FIELD(pb_attention, lanes), FIELD(pb_attention, run),
    WHOLE(pb_quantizer),
    FIELD(pb_quantizer, rows), FIELD(pb_quantizer, columns), FIELD(pb_quantizer, strength),
    FIELD(pb_quantizer, shift), FIELD(pb_quantizer, shifts), FIELD(pb_quantizer, map),
    FIELD(pb_quantizer, sharp), FIELD(pb_quantizer, height),
};

bool same(const char* a, const char* b) { return a && b ? !std::strcmp(a, b) : a == b; }

}  // namespace

int64_t pb_layout(const char* structure, const char* field) {
  for (const Field& known : kFields)
    if (same(known.structure, structure) && same(known.name, field)) return known.offset;
  return -1;
}
