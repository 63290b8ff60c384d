// Quantizers in training: the C ABI, and how work is cut. The arithmetic is in the loops.
#include "quantize.hpp"

#include <algorithm>
#include <cfloat>
#include <new>
#include <vector>

#include "backend.hpp"
#include "parallel.hpp"

namespace proxbit {
namespace {

const QuantizeKernels& kernels() { return backend().quantize; }

bool sound(const pb_quantizer* how) {
  return how && how->rows > 0 && how->columns > 0 && how->strength && how->shifts >= 0;
}

bool is_forward(int32_t map) { return map >= PB_SIGN && map <= PB_TANH; }
bool is_backward(int32_t map) { return map >= PB_INSIDE && map <= PB_TANH_SLOPE; }

// rho is cut at 1, where there is no room for a line: a height of 1 and no slope make the sign.
void shape_line(Curve& curve, float height) {
  const float rho = std::min(curve.strength, 1.0f), room = 1.0f - rho;
  const float start = height < 0.0f ? rho : std::min(height, 1.0f);
  curve.slope = room > 0.0f ? (1.0f - start) / room : 0.0f;
  curve.height = room > 0.0f ? start : 1.0f;
}

Curve curve_of(const pb_quantizer& how) {
  constexpr float kTwicePeak = 2.39935728f;  // 2 * 1.1996786...: where the sign-Swish peaks
  Curve curve{};
  const bool sign = how.sharp && is_forward(how.map);  // every F has the sign of its value
  curve.map = sign ? static_cast<int32_t>(PB_SIGN) : how.map;
  curve.strength = *how.strength;
  curve.peak = kTwicePeak / curve.strength;
  curve.gain = 4.0f * curve.strength;
  if (how.map == PB_LINE) shape_line(curve, how.height);
  const bool poly = how.map == PB_POLY || how.map == PB_POLY_SLOPE;
  if (poly || how.map == PB_TANH || how.map == PB_TANH_SLOPE) {
    const float s = std::max(curve.strength, 1e-4f), k = std::max(1.0f / s, 1.0f);
    curve.strength = s;
    curve.gain = is_forward(how.map) ? k : poly ? k * s : 4.0f * k * s;
  }
  return curve;
}

Origin origin_of(const pb_quantizer& how, int64_t row, int64_t column, float unit) {
  if (!how.shift) return {nullptr, 0.0f, unit};
  if (how.shifts == 0) return {how.shift + column, 0.0f, unit};
  return {nullptr, how.shift[row % how.shifts], unit};
}

// Runs body(first row, last row, first column, last column) over all values, in parts that do not
// depend on the number of threads.
template <class Body>
void for_values(const pb_quantizer& how, int threads, bool whole_rows, const Body& body) {
  const int64_t rows = how.rows, columns = how.columns;
  const int64_t wide = whole_rows ? columns : std::min(columns, kPart);
  const int64_t tall = std::max<int64_t>(1, kPart / wide);
  const int64_t across = (columns + wide - 1) / wide, down = (rows + tall - 1) / tall;
  for_parts(across * down, threads_for_values(rows * columns, threads), [&](int64_t part) {
    const int64_t row = part / across * tall, column = part % across * wide;
    body(row, std::min(rows, row + tall), column, std::min(columns, column + wide));
  });
}

template <class Body>
void for_rows(const pb_quantizer& how, int threads, const Body& body) {
  for_values(how, threads, true, [&](int64_t first, int64_t last, int64_t, int64_t) {
    for (int64_t row = first; row < last; ++row) body(row);
  });
}

float mean_of(double sum, int64_t count) { return static_cast<float>(sum / static_cast<double>(count)); }

float least_squares(double overlap, double power, int64_t count) {
  const double n = static_cast<double>(count);
  return static_cast<float>(overlap / n / std::max(power / n, static_cast<double>(FLT_MIN)));
}

// One call of pb_quantize.
struct Weights {
  const pb_quantizer& how;
  const Curve curve;
  const float* w;
  int32_t unit_kind, scale_kind;
  bool scaled;
  float* unit;
  float* scale;
  float* q;
  int threads;

  const float* row_of(int64_t row) const { return w + row * how.columns; }
  float* out_of(int64_t row) const { return q + row * how.columns; }
  bool needs_mean() const { return unit_kind == PB_UNIT_MEAN || scale_kind == PB_SCALE_MEAN; }

  void evaluate(int64_t row, float with_unit) const {
    kernels().forward(curve, origin_of(how, row, 0, with_unit), row_of(row), out_of(row), how.columns);
  }

  // From a mean to the unit that is used and, where asked for, to the scale.
  float settle(float mean, int64_t place) const {
    if (scale_kind == PB_SCALE_MEAN) scale[place] = mean;
    if (unit_kind == PB_UNIT_MEAN) return unit[place] = std::max(mean, FLT_MIN);
    return unit_kind == PB_UNIT_GIVEN ? unit[0] : 1.0f;
  }

  float scale_at(int64_t place, float used) const {
    return scale_kind == PB_SCALE_UNIT ? used : scale[place];
  }

  // Each row has its own unit and scale, so it is finished while it lies in the cache.
  void by_rows() const {
    const QuantizeKernels& loops = kernels();
    for_rows(how, threads, [&](int64_t row) {
      const int64_t n = how.columns;
      const float mean = needs_mean() ? mean_of(loops.size(row_of(row), n), n) : 0.0f;
      const float used = settle(mean, row);
      evaluate(row, used);
      if (scale_kind == PB_SCALE_LEAST_SQUARES) {
        const double overlap = loops.product(row_of(row), out_of(row), n);
        scale[row] = least_squares(overlap, loops.product(out_of(row), out_of(row), n), n);
      }
      if (scaled) loops.multiply(out_of(row), scale_at(row, used), n);
    });
  }

  // One unit and scale for all: sums of rows, added in the order of the rows.
  void as_a_whole() const {
    const QuantizeKernels& loops = kernels();
    const int64_t n = how.columns, all = n * how.rows;
    std::vector<double> sums(static_cast<size_t>(2 * how.rows));
    const auto total = [&](int64_t begin) {
      double sum = 0.0;
      for (int64_t row = 0; row < how.rows; ++row) sum += sums[static_cast<size_t>(begin + row)];
      return sum;
    };
    if (needs_mean())
      for_rows(how, threads, [&](int64_t row) {
        sums[static_cast<size_t>(row)] = loops.size(row_of(row), n);
      });
    const float used = settle(needs_mean() ? mean_of(total(0), all) : 0.0f, 0);
    const bool fits = scale_kind == PB_SCALE_LEAST_SQUARES;
    const bool at_once = scaled && !fits;
    for_rows(how, threads, [&](int64_t row) {
      evaluate(row, used);
      if (at_once) loops.multiply(out_of(row), scale_at(0, used), n);
      if (!fits) return;
      sums[static_cast<size_t>(row)] = loops.product(row_of(row), out_of(row), n);
      sums[static_cast<size_t>(how.rows + row)] = loops.product(out_of(row), out_of(row), n);
    });
    if (!fits) return;
    scale[0] = least_squares(total(0), total(how.rows), all);
    if (scaled) for_rows(how, threads, [&](int64_t row) { loops.multiply(out_of(row), scale[0], n); });
  }

  // No sums at all: any part of a row will do.
  void elementwise() const {
    const float used = unit_kind == PB_UNIT_GIVEN ? unit[0] : 1.0f;
    for_values(how, threads, false, [&](int64_t first, int64_t last, int64_t begin, int64_t end) {
      for (int64_t row = first; row < last; ++row) {
        float* out = out_of(row) + begin;
        kernels().forward(curve, origin_of(how, row, begin, used), row_of(row) + begin, out, end - begin);
        if (scaled && scale_kind == PB_SCALE_UNIT) kernels().multiply(out, used, end - begin);
      }
    });
  }

  bool sums_nothing() const {
    return unit_kind != PB_UNIT_MEAN && (scale_kind == PB_SCALE_NONE || scale_kind == PB_SCALE_UNIT);
  }
};

void backward(const Curve& curve, const Origin& origin, const float* w, const float* g, float factor,
              float* out, int64_t n) {
  kernels().backward(curve, origin, w, g, factor, out, n);
}

void backward(const Curve& curve, const Origin& origin, const uint16_t* w, const uint16_t* g, float factor,
              uint16_t* out, int64_t n) {
  kernels().backward16(curve, origin, w, g, factor, out, n);
}

template <class Value>
int pull(const pb_quantizer* how, const Value* w, const Value* g, const float* unit, int64_t units,
         const float* factor, int64_t factors, Value* out, int threads) {
  if (!sound(how) || !w || !g || !out || !is_backward(how->map)) return PB_BAD_ARGUMENT;
  const auto fits = [&](const float* values, int64_t count) {
    return count == 0 || (values && (count == 1 || count == how->rows));
  };
  if (!fits(unit, units) || !fits(factor, factors)) return PB_BAD_ARGUMENT;
  const auto of_row = [](const float* values, int64_t count, int64_t row) {
    return count == 0 ? 1.0f : values[count == 1 ? 0 : row];
  };
  const Curve curve = curve_of(*how);
  for_values(*how, threads, false, [&](int64_t first, int64_t last, int64_t begin, int64_t end) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = row * how->columns + begin;
      const Origin origin = origin_of(*how, row, begin, of_row(unit, units, row));
      backward(curve, origin, w + at, g + at, of_row(factor, factors, row), out + at, end - begin);
    }
  });
  return PB_OK;
}

}  // namespace
}  // namespace proxbit

using namespace proxbit;

int pb_quantize(const pb_quantizer* how, const float* w, int32_t unit_kind, int32_t scale_kind,
                int32_t per_layer, int32_t scaled, float* unit, float* scale, float* q,
                int threads) try {
  if (!sound(how) || !w || !q || !is_forward(how->map)) return PB_BAD_ARGUMENT;
  if (unit_kind < PB_UNIT_ONE || unit_kind > PB_UNIT_MEAN) return PB_BAD_ARGUMENT;
  if (scale_kind < PB_SCALE_NONE || scale_kind > PB_SCALE_LEAST_SQUARES) return PB_BAD_ARGUMENT;
  if ((unit_kind != PB_UNIT_ONE && !unit) || (scale_kind >= PB_SCALE_MEAN && !scale)) return PB_BAD_ARGUMENT;
  const bool times = scaled != 0 && scale_kind != PB_SCALE_NONE;
  const Weights weights{*how, curve_of(*how), w, unit_kind, scale_kind, times, unit, scale, q, threads};
  if (weights.sums_nothing()) {
    weights.elementwise();
  } else if (per_layer) {
    weights.as_a_whole();
  } else {
    weights.by_rows();
  }
  return PB_OK;
} catch (const std::bad_alloc&) {
  return PB_NO_MEMORY;
}

int pb_pull(const pb_quantizer* how, const float* w, const float* g, const float* unit, int64_t units,
            const float* factor, int64_t factors, float* out, int threads) try {
  return pull(how, w, g, unit, units, factor, factors, out, threads);
} catch (const std::bad_alloc&) {
  return PB_NO_MEMORY;
}

int pb_quantize_bf16(const pb_quantizer* how, const uint16_t* x, uint16_t* q, int threads) try {
  if (!sound(how) || !x || !q || !is_forward(how->map)) return PB_BAD_ARGUMENT;
  const Curve curve = curve_of(*how);
  for_values(*how, threads, false, [&](int64_t first, int64_t last, int64_t begin, int64_t end) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = row * how->columns + begin;
      kernels().forward16(curve, origin_of(*how, row, begin, 1.0f), x + at, q + at, end - begin);
    }
  });
  return PB_OK;
} catch (const std::bad_alloc&) {
  return PB_NO_MEMORY;
}

int pb_pull_bf16(const pb_quantizer* how, const uint16_t* x, const uint16_t* g, const float* unit,
                 int64_t units, const float* factor, int64_t factors, uint16_t* out, int threads) try {
  return pull(how, x, g, unit, units, factor, factors, out, threads);
} catch (const std::bad_alloc&) {
  return PB_NO_MEMORY;
}
