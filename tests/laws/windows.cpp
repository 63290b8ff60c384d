// Windows of convolutions: any size, stride, pad and dilation that has a place for the kernel.
#include <algorithm>

#include "laws.hpp"

namespace {

int64_t places(int64_t size, int64_t kernel, int64_t dilation, int64_t step) {
  return (size - dilation * (kernel - 1) - 1) / step + 1;
}

// Contiguous, channels last, or channels last with gaps; and the floats from the first to the last.
void draw_strides(Random& random, pb_window& w) {
  const int64_t kind = random.from(0, 3), gap = kind == 3 ? random.from(1, 5) : 0;
  if (kind == 0) {
    w.stride_w = 1, w.stride_h = w.width;
    w.stride_c = w.stride_h * w.height, w.stride_n = w.stride_c * w.channels;
  } else {
    w.stride_c = kind == 3 ? random.from(1, 2) : 1;
    w.stride_w = w.stride_c * w.channels + gap;
    w.stride_h = w.stride_w * w.width + gap, w.stride_n = w.stride_h * w.height;
  }
  w.in_size = 1 + (w.batch - 1) * w.stride_n + (w.channels - 1) * w.stride_c + (w.height - 1) * w.stride_h +
              (w.width - 1) * w.stride_w;
}

}  // namespace

Window draw_window(Random& random, int64_t groups, bool in_bits) {
  pb_window w{};
  w.batch = random.from(1, 3);
  w.channels = groups * (random.once_in(2) ? random.from(1, 20) : random.one_of<int64_t>({8, 16, 24, 32, 48, 64}));
  w.kernel_h = random.from(1, 3), w.kernel_w = random.one_of<int64_t>({1, 3, 3, 2, 5});
  w.step_h = random.from(1, 2), w.step_w = random.from(1, 3);
  w.dilation_h = random.from(1, 2), w.dilation_w = random.once_in(4) ? 2 : 1;
  w.pad_top = random.from(0, 2), w.pad_bottom = random.from(0, 2);
  w.pad_left = random.from(0, 2), w.pad_right = random.from(0, 2);
  w.height = random.from(1, 9), w.width = random.size(12, 20);
  w.height += std::max<int64_t>(0, w.dilation_h * (w.kernel_h - 1) + 1 - w.height);
  w.width += std::max<int64_t>(0, w.dilation_w * (w.kernel_w - 1) + 1 - w.width);
  if (random.once_in(5)) {  // nothing but the pixels themselves
    w.kernel_h = w.kernel_w = w.step_h = w.step_w = 1;
    w.pad_top = w.pad_bottom = w.pad_left = w.pad_right = 0;
  }
  w.pad_bit = static_cast<int32_t>(random.from(0, 1));
  draw_strides(random, w);
  if (in_bits) w.in_size = w.batch * w.height * w.width * ((w.channels + 7) / 8);
  const int64_t high = places(w.height + w.pad_top + w.pad_bottom, w.kernel_h, w.dilation_h, w.step_h);
  const int64_t wide = places(w.width + w.pad_left + w.pad_right, w.kernel_w, w.dilation_w, w.step_w);
  return {w, w.batch * high * wide,
          text({{"batch", w.batch}, {"channels", w.channels}, {"height", w.height}, {"width", w.width},
                {"stride_c", w.stride_c}, {"kernel_h", w.kernel_h}, {"kernel_w", w.kernel_w},
                {"step_h", w.step_h}, {"step_w", w.step_w}, {"dilation_h", w.dilation_h},
                {"dilation_w", w.dilation_w}, {"pad_left", w.pad_left}, {"pad_bit", w.pad_bit}})};
}
