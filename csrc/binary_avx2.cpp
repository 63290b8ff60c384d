// Binary times binary with AVX2: a table lookup is xnor and popcount at once, for two rows in one byte.
//
// A nibble of a row and a nibble of a weight match in 0 to 4 places. For two rows and one nibble of
// each, a table of 16 bytes holds the matches with every weight nibble: those of the first row in the
// low half of the byte, of the second in the high half. One vpshufb looks up 32 outputs. Three lookups
// add up to at most 12, which fits a half; then
//     all += s,  high += s >> 4   and at the end   low = all - 16 * high  (mod 256).
#include <algorithm>
#include <cstring>

#include "binary.hpp"
#include "binary_panel_avx2.hpp"
#include "binary_signs.hpp"
#include "binary_sliding_avx2.hpp"
#include "binary_tiles_avx2.hpp"
#include "scratch.hpp"
#include "vector_avx2.hpp"

namespace proxbit {
namespace {

struct Tile {
  int64_t rows[kTile];
};

// The last tile overlaps the one before it, so that every tile has four rows; two or three rows repeat.
Tile tile_at(int64_t index, int64_t count) {
  Tile tile;
  const int64_t first = std::max<int64_t>(0, std::min(index * kTile, count - kTile));
  for (int64_t r = 0; r < kTile; ++r) tile.rows[r] = std::min(first + r, count - 1);
  return tile;
}

// One panel against all rows.
template <int Vectors, Out out>
void multiply_panel(const Product& product, const uint8_t* weights, const uint8_t* table, int64_t rows,
                    const Panel<out>& panel) {
  const int64_t nibbles = 2 * product.row_bytes, tiles = (rows + kTile - 1) / kTile;
  const bool bytes = product.register_bits && product.register_bits <= 8;
  const bool at_once = nibbles <= (bytes ? kChunk : kSafe);
  alignas(64) uint8_t index[kChunk * Vectors * 32];
  static thread_local Scratch scratch;
  Sums<Vectors>* sums = nullptr;
  if (nibbles > kChunk) sums = scratch.take<Sums<Vectors>>(static_cast<size_t>(tiles));
  for (int64_t begin = 0; begin < nibbles; begin += kChunk) {
    const int64_t size = std::min(kChunk, nibbles - begin);
    split_nibbles<Vectors>(weights + begin / 2 * kPanel, size / 2, index);
    for (int64_t t = 0; t < tiles; ++t) {
      const Tile tile = tile_at(t, rows);
      const uint8_t* first = table + (2 * t * nibbles + begin) * kTable;
      const uint8_t* second = first + nibbles * kTable;
      if (at_once) {
        Counts<Vectors> counts;
        count<Vectors>(first, second, index, size, counts);
        write_counts<Vectors>(counts, panel, tile.rows);
        continue;
      }
      Sums<Vectors> here;
      if (begin == 0) {
        here.clear();
      } else {
        here = sums[t];
      }
      here.add(first, second, index, size, bytes);
      if (begin + size < nibbles) {
        sums[t] = here;
      } else {
        here.write(panel, tile.rows, bytes);
      }
    }
  }
}

template <Out out>
void multiply_tiles(const Product& product, const uint8_t* rows, int64_t count, int64_t first,
                    int64_t last, const Sink& sink) {
  static thread_local Scratch scratch;
  const int64_t tiles = (count + kTile - 1) / kTile, nibbles = 2 * product.row_bytes;
  uint8_t* table = scratch.take<uint8_t>(static_cast<size_t>(2 * tiles * nibbles * kTable));
  uint8_t* to = table;
  for (int64_t t = 0; t < tiles; ++t) {
    const Tile tile = tile_at(t, count);
    for (int64_t r = 0; r < kTile; r += 2, to += nibbles * kTable)
      make_pair(rows + tile.rows[r] * product.row_bytes, rows + tile.rows[r + 1] * product.row_bytes,
                product.row_bytes, to);
  }
  for (int64_t p = first; p < last; ++p) {
    const Panel<out> panel(product, p, sink);
    const uint8_t* weights = product.panels + p * kPanel * product.row_bytes;
    if (panel.width > kHalf) {
      multiply_panel<2>(product, weights, table, count, panel);
    } else {
      multiply_panel<1>(product, weights, table, count, panel);
    }
  }
}

// -------------------------------------------------------------------------------------- one row

// One table per nibble, in both halves of a vector.
void make_row_tables(const uint8_t* row, int64_t row_bytes, uint8_t* to) {
  for (int64_t i = 0; i < row_bytes; ++i, to += 64) {
    const Vec mask = _mm256_set1_epi8(15);  // the second row of a pair is left out
    store(to, _mm256_and_si256(twice(tables.of[row[i] & 15]), mask));
    store(to + 32, _mm256_and_si256(twice(tables.of[row[i] >> 4]), mask));
  }
}

INLINE Vec add_matches(Vec sum, Vec low, Vec high, Vec weights, Vec mask) {
  sum = _mm256_add_epi8(sum, _mm256_shuffle_epi8(low, _mm256_and_si256(weights, mask)));
  pin(sum);
  sum = _mm256_add_epi8(sum, _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(weights, 4), mask)));
  pin(sum);
  return sum;
}

template <int Vectors, Out out>
void multiply_row(const Product& product, const uint8_t* weights, const uint8_t* table, const Panel<out>& panel) {
  constexpr int64_t kSafeBytes = kSafe / 2;
  const Vec zero = _mm256_setzero_si256();
  Vec even0 = zero, even1 = zero, odd0 = zero, odd1 = zero, mask = _mm256_set1_epi8(15);
  pin(mask);
  for (int64_t begin = 0; begin < product.row_bytes; begin += kSafeBytes) {
    const int64_t end = std::min(product.row_bytes, begin + kSafeBytes);
    Vec sum0 = zero, sum1 = zero;
    for (int64_t b = begin; b < end; ++b) {
      const Vec low = load(table + 64 * b), high = load(table + 64 * b + 32);
      sum0 = add_matches(sum0, low, high, load(weights + b * kPanel), mask);
      if constexpr (Vectors == 2) sum1 = add_matches(sum1, low, high, load(weights + b * kPanel + 32), mask);
    }
    even0 = _mm256_add_epi16(even0, even_bytes(sum0)), odd0 = _mm256_add_epi16(odd0, odd_bytes(sum0));
    even1 = _mm256_add_epi16(even1, even_bytes(sum1)), odd1 = _mm256_add_epi16(odd1, odd_bytes(sum1));
  }
  Vec matches[4 * Vectors];
  if constexpr (out == Out::cyclic8) {
    panel.from_counts(bytes_of(even0, odd0), matches);
    if constexpr (Vectors == 2) panel.from_counts(bytes_of(even1, odd1), matches + 4);
  } else {
    widen_words(even0, odd0, matches);
    if constexpr (Vectors == 2) widen_words(even1, odd1, matches + 4);
  }
  panel.template write<Vectors>(0, matches);
}

template <Out out>
void multiply_one(const Product& product, const uint8_t* row, int64_t first, int64_t last, const Sink& sink) {
  static thread_local Scratch scratch;
  uint8_t* table = scratch.take<uint8_t>(static_cast<size_t>(64 * product.row_bytes));
  make_row_tables(row, product.row_bytes, table);
  for (int64_t p = first; p < last; ++p) {
    const Panel<out> panel(product, p, sink);
    const uint8_t* weights = product.panels + p * kPanel * product.row_bytes;
    if (panel.width > kHalf) {
      multiply_row<2>(product, weights, table, panel);
    } else {
      multiply_row<1>(product, weights, table, panel);
    }
  }
}

template <Out out>
void multiply_into(const Product& product, const uint8_t* rows, int64_t count, int64_t first,
                   int64_t last, const Sink& sink) {
  if (count == 1) {
    multiply_one<out>(product, rows, first, last, sink);
  } else {
    multiply_tiles<out>(product, rows, count, first, last, sink);
  }
}

void multiply(const Product& product, const uint8_t* rows, int64_t count, int64_t first, int64_t last,
              const Sink& sink) {
  if (sink.bits) return multiply_into<Out::bits>(product, rows, count, first, last, sink);
  if (is_usual_register(product))
    return multiply_into<Out::cyclic8>(product, rows, count, first, last, sink);
  if (product.register_bits) return multiply_into<Out::wrapped>(product, rows, count, first, last, sink);
  multiply_into<Out::values>(product, rows, count, first, last, sink);
}

void slide(const Slide& s) {
  if (s.sink.bits) return slide_into<Out::bits>(s);
  if (is_usual_register(s.product)) return slide_into<Out::cyclic8>(s);
  if (s.product.register_bits) return slide_into<Out::wrapped>(s);
  slide_into<Out::values>(s);
}

// In a vector of 32 outputs, byte 4 * i + j belongs to output 8 * j + i: so the j-th bytes of all eight
// 32-bit words are eight outputs in their natural order.
int64_t panels_size(int64_t outputs, int64_t row_bytes) { return panels_of(outputs) * kPanel * row_bytes; }
int64_t place_of(int64_t, int64_t row_bytes, int64_t output, int64_t byte) {
  const int64_t half = output % kPanel / kHalf * kHalf, within = output % kHalf;
  return output / kPanel * kPanel * row_bytes + byte * kPanel + half + 4 * (within % 8) + within / 8;
}

}  // namespace

extern const BinaryKernels avx2_binary;
const BinaryKernels avx2_binary = {kStep,       kTile,    kTable,    {panels_size, place_of}, sign_row,
                                   sign_pixels, multiply, can_slide, slide};

}  // namespace proxbit
