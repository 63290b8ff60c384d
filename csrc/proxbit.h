/* The kernels of proxbit behind a C ABI: plain pointers in, plain pointers out, no Python, no torch.
 *
 * Every function returns 0, or a code of pb_error and writes nothing. Sizes are counts of elements
 * unless a name ends in "bytes". Whatever a kernel reads or writes comes with its length, which must be
 * what the layer needs: a wrong one is PB_BAD_ARGUMENT. A bit is 1 for +1 and 0 for -1; bit k of a row is bit k % 8 of its
 * byte k / 8, and the bits behind the last one of a row are 0.
 */
#ifndef PROXBIT_H
#define PROXBIT_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define PB_API __declspec(dllexport)
#else
#define PB_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define PB_ABI 4

enum pb_error { PB_OK = 0, PB_BAD_ARGUMENT = 1, PB_NO_MEMORY = 2, PB_NO_SUCH_ISA = 3 };

/* What stands behind a sum, on its way to the output. */
enum pb_activation { PB_IDENTITY = 0, PB_RELU = 1, PB_GELU = 2, PB_HARDTANH = 3 };

/* How exactly a layer with float inputs multiplies. */
enum pb_precision { PB_EXACT = 0, PB_INPUT8 = 1 };

/* Runs work(data) on `threads` threads at once, as GOMP_parallel does; NULL: own threads. */
typedef void (*pb_team)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

PB_API int pb_abi(void);
/* The instruction sets that were built in, the best first, each followed by a space: "avx2 portable ". */
PB_API const char* pb_backends(void);
PB_API int pb_supports(const char* name);   /* whether this machine has it: 1 or 0 */
PB_API const char* pb_isa(void);            /* the one in use */
/* NULL: the best that this machine has. Panels and weights are laid out for the instruction set in use:
 * whoever changes it makes them anew. */
PB_API int pb_use_isa(const char* name);
PB_API void pb_use_team(pb_team team);

/* The offset of a field in a structure of this header, or its whole size where field is NULL; -1 for
 * names that are not here. So a caller in another language can check its own declarations. */
PB_API int64_t pb_layout(const char* structure, const char* field);

/* One layer with binary weights and binary inputs. */
typedef struct {
  int64_t outputs;       /* of one group */
  int64_t row_bytes;     /* bytes of one row of bits, of one group */
  int64_t products;      /* true products per output: the bits behind them are 0 in both factors */
  int64_t groups;
  const uint8_t* panels; /* made by pb_make_panels, one group behind the other */
  int64_t panel_bytes;
  const float* scale;    /* outputs * groups */
  int64_t scales;
  const float* bias;     /* outputs * groups, or NULL */
  int64_t biases;
  const float* threshold; /* of float inputs: one per input channel, all groups together, or NULL */
  int64_t thresholds;
  int32_t register_bits; /* 0: exact sums; b: sums wrap around at b bits (2 to 24) */
  float slope;           /* of the cyclic function behind a wrapped sum */
  int32_t activation;    /* pb_activation, behind scale and bias */
  /* For outputs as bits: bit = (low <= sum && sum < high) != flip, per output, on the wrapped sum. */
  const int32_t* low;
  const int32_t* high;
  const uint8_t* flip;
  int64_t bounds;        /* how many there are of each: outputs */
} pb_binary;

/* The window of a convolution; for a 1-d one, height and kernel_height are 1. */
typedef struct {
  int64_t batch, channels, height, width; /* of the input; channels of all groups together */
  int64_t stride_n, stride_c, stride_h, stride_w; /* of the float input, in elements */
  int64_t kernel_h, kernel_w, step_h, step_w, dilation_h, dilation_w;
  int64_t pad_top, pad_bottom, pad_left, pad_right;
  int32_t pad_bit;       /* what lies outside a binary input: 1 or 0 */
  int64_t in_size;       /* floats from the first to the last of the input, or its bytes of bits */
  int64_t out_size;      /* floats of the output, or its bytes of bits */
} pb_window;

PB_API size_t pb_panel_bytes(int64_t outputs, int64_t row_bytes);
/* rows: outputs x row_bytes. */
PB_API int pb_make_panels(const uint8_t* rows, int64_t outputs, int64_t row_bytes, uint8_t* panels);
/* The way back: the rows that panels were made of. */
PB_API int pb_read_panels(const uint8_t* panels, int64_t outputs, int64_t row_bytes, uint8_t* rows);

/* bit = whether the sign bit of x - threshold is 0 (of x, where threshold is NULL): 1 for +0.0, 0 for -0.0.
 * Bits cannot hold NaN: it is 1. threshold has one value per column. */
PB_API int pb_sign_rows(const float* x, int64_t rows, int64_t columns, int64_t row_stride,
                        const float* threshold, uint8_t* bits, int64_t row_bytes, int threads);

/* What follows a layer in its network, on rows of floats: y = activation(y * gain + shift + other), and the
 * signs of the result. What is NULL or PB_IDENTITY does not follow. */
typedef struct {
  const float* gain;   /* one per column */
  const float* shift;  /* one per column */
  const float* other;  /* as large as y */
  uint8_t* bits;       /* each row begins with a new byte */
  int32_t contracted;  /* 1 where y * gain + shift is rounded once */
  int32_t activation;  /* PB_RELU or PB_HARDTANH */
} pb_following;

/* x: rows x columns floats, where columns are the products; or else bits: rows x columns bytes, where
 * columns are row_bytes. Writes out (rows x outputs) or out_bits (rows x ceil(outputs / 8)). `then` may be
 * NULL, and is with out_bits. */
PB_API int pb_binary_linear(const pb_binary* layer, const float* x, int64_t row_stride,
                            const uint8_t* bits, int64_t rows, int64_t columns, float* out,
                            uint8_t* out_bits, int64_t out_size, const pb_following* then, int threads);

/* Rows of the weight are in the order (kernel_h, kernel_w, channel), each channel run padded to whole
 * bytes. bits: batch x height x width x ceil(channels / 8), one group only. Writes out or out_bits
 * as batch x out_height x out_width x outputs * groups, and then what follows, as above. */
PB_API int pb_binary_conv(const pb_binary* layer, const pb_window* window, const float* x,
                          const uint8_t* bits, float* out, uint8_t* out_bits, const pb_following* then,
                          int threads);

/* The same for a convolution whose channels each have a window of their own: outputs is 1, groups are the channels,
 * products and row_bytes the places of the window (at most 127). Panels are rows of bits here, on every backend: for
 * each place ceil(groups / 8) bytes, a bit per channel. Bits may come in and go out, with bounds for each channel. */
PB_API int pb_depthwise_conv(const pb_binary* layer, const pb_window* window, const float* x,
                             const uint8_t* bits, float* out, uint8_t* out_bits,
                             const pb_following* then, int threads);

/* One layer with binary weights and float inputs. */
typedef struct {
  int64_t outputs;        /* of one group */
  int64_t inputs;         /* products per output */
  int64_t groups;
  const uint8_t* weights; /* made by pb_make_weights, one group behind the other */
  int64_t weight_bytes;
  const float* scale;     /* outputs * groups */
  int64_t scales;
  const float* bias;      /* outputs * groups, or NULL */
  int64_t biases;
  int32_t activation;     /* pb_activation, behind scale and bias */
  int32_t precision;      /* pb_precision */
} pb_weight;

PB_API size_t pb_weight_bytes(int64_t outputs, int64_t inputs);
/* rows: outputs x ceil(inputs / 8). */
PB_API int pb_make_weights(const uint8_t* rows, int64_t outputs, int64_t inputs, uint8_t* weights);
/* The way back: the rows that weights were made of. */
PB_API int pb_read_weights(const uint8_t* weights, int64_t outputs, int64_t inputs, uint8_t* rows);

/* x: rows x columns floats, where columns are inputs * groups. Writes out: rows x outputs * groups. */
PB_API int pb_weight_linear(const pb_weight* layer, const float* x, int64_t row_stride, int64_t rows,
                            int64_t columns, float* out, int64_t out_size, int threads);

/* Inputs of 8 bits. A byte b of row r stands for b * quantum[r], or for b * quantum[0] if there is only one.
 * pb_round_rows makes them of floats, each row by itself: b = nearest(127 x / max|x|). A row that is not finite
 * becomes zeros with a quantum of NaN, one that ends below 1e-30 zeros with a quantum of 0. */
PB_API int pb_round_rows(const float* x, int64_t rows, int64_t columns, int64_t row_stride, int8_t* bytes,
                         float* quantum, int threads);
/* The sum of +-b is exact; then y = activation((sum * quantum) * scale + bias) in float32. bytes: rows x columns,
 * each row row_stride behind the one before. The layer's precision does not matter. For finite rows, rounded by
 * pb_round_rows, this is pb_weight_linear with PB_INPUT8. */
PB_API int pb_weight_linear8(const pb_weight* layer, const int8_t* bytes, int64_t row_stride, int64_t rows,
                             int64_t columns, const float* quantum, int64_t quanta, float* out,
                             int64_t out_size, int threads);

/* Rows of the weight are in the order (kernel_h, kernel_w, channel of the group); outside is 0. Writes
 * batch x out_height x out_width x outputs * groups. */
PB_API int pb_weight_conv(const pb_weight* layer, const pb_window* window, const float* x, float* out,
                          int threads);

/* The same by itself: in place, on rows x width floats. */
PB_API int pb_follow(float* values, int64_t rows, int64_t width, const pb_following* how, int threads);

/* Attention in float32: softmax(scale * q k') v for each head. Strides are those of image, head and row, in
 * elements; the values of a row follow each other. */
typedef struct {
  int64_t batch, heads, queries, keys;
  int64_t width;         /* of a head: a multiple of 16 */
  int64_t q_strides[3], k_strides[3], v_strides[3];
  float scale;
  int32_t lanes;         /* 8 or 16: the sum of a softmax has as many parts */
  int64_t run;           /* products with values are summed in runs of so many keys, and then run by run */
} pb_attention;

/* Writes out: batch x queries x heads x width. A product is added with one rounding, in ascending order. The sum of a
 * softmax takes a value into each lane in turn, then folds the lanes in halves, and adds the values behind the last
 * whole group one by one. So does torch; lanes and runs depend on its build and on the CPU. */
PB_API int pb_attend(const pb_attention* how, const float* q, const float* k, const float* v, float* out,
                     int threads);

/* Quantizers in training: a forward map F, or the multiplier B of the gradient behind it. The formulas
 * are those of proxbit.maps. */
enum pb_forward { PB_SIGN = 0, PB_LINE = 1, PB_SWISH = 2, PB_PEAKED = 3, PB_POLY = 4, PB_TANH = 5 };
enum pb_backward {
  PB_INSIDE = 16,
  PB_TRIANGLE = 17,
  PB_SWISH_SLOPE = 18,
  PB_PEAKED_SLOPE = 19,
  PB_POLY_SLOPE = 20,
  PB_TANH_SLOPE = 21
};
enum pb_unit { PB_UNIT_ONE = 0, PB_UNIT_GIVEN = 1, PB_UNIT_MEAN = 2 };
enum pb_scale { PB_SCALE_NONE = 0, PB_SCALE_UNIT = 1, PB_SCALE_MEAN = 2, PB_SCALE_LEAST_SQUARES = 3 };

typedef struct {
  int64_t rows, columns; /* of the values, one row behind the other; a weight has a row per output */
  const float* strength; /* one value */
  const float* shift;    /* taken off the values first, or NULL */
  int64_t shifts;        /* row r takes shift[r % shifts]; 0: column c takes shift[c] */
  int32_t map;           /* pb_forward or pb_backward */
  int32_t sharp;         /* 1: the sign of F instead of F */
  float height;          /* of PB_LINE at 0; negative: as high as the strength */
} pb_quantizer;

/* q = F((w - shift) / unit), times the scale where `scaled` is 1. PB_UNIT_GIVEN reads unit[0];
 * PB_UNIT_MEAN writes mean|w| of each row, or of all rows to unit[0] if `per_layer` is 1. The scale is
 * written alike, except PB_SCALE_UNIT, which is the unit. */
PB_API int pb_quantize(const pb_quantizer* how, const float* w, int32_t unit_kind, int32_t scale_kind,
                       int32_t per_layer, int32_t scaled, float* unit, float* scale, float* q,
                       int threads);

/* out = g * B((w - shift) / unit) * factor; units and factors: how many there are, 0, 1 or rows. */
PB_API int pb_pull(const pb_quantizer* how, const float* w, const float* g, const float* unit,
                   int64_t units, const float* factor, int64_t factors, float* out, int threads);

/* The same for binary inputs in bfloat16, q = F(x - shift) and out = g * B(...) * factor: computed in float32,
 * rounded once. */
PB_API int pb_quantize_bf16(const pb_quantizer* how, const uint16_t* x, uint16_t* q, int threads);
PB_API int pb_pull_bf16(const pb_quantizer* how, const uint16_t* x, const uint16_t* g, const float* unit,
                        int64_t units, const float* factor, int64_t factors, uint16_t* out, int threads);

/* Accumulators in training: out = c_k(m) of the m that a register of 2 to 24 bits holds after summing up
 * to z, and how many of the n sums did not fit. `back`, if not NULL, gets 1 where c_k falls, else 0. */
PB_API int pb_wrap(const float* z, int64_t n, int32_t bits, double k, float* out, uint8_t* back,
                   int64_t* overflows, int threads);

/* out = g * c_k'(m), which is -k where `back` is 1; the gradient passes the wrap itself unchanged. */
PB_API int pb_wrap_pull(const uint8_t* back, const float* g, int64_t n, double k, float* out, int threads);

#ifdef __cplusplus
}
#endif
#endif
