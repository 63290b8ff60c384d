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
#include "binary_signs_avx2.hpp"
#include "scratch.hpp"
#include "vector_avx2.hpp"

namespace proxbit {
namespace {

constexpr int64_t kNibbles = 2 * kStep / 2;  // nibbles that one inner step takes: three
constexpr int64_t kSafe = 63;                // nibbles until a count of matches could pass 255
constexpr int64_t kChunk = 4 * kSafe;        // nibbles of a panel that stay in L1 beside the tables
constexpr int64_t kTableRow = 32;            // bytes of tables per nibble: two pairs of rows

constexpr int matches4(int a, int w) {
  const int differ = (a ^ w) & 15;
  return 4 - (differ & 1) - (differ >> 1 & 1) - (differ >> 2 & 1) - (differ >> 3);
}

// A constant, not a constructor: nothing here may run on a machine without AVX2.
struct MatchTables {
  alignas(64) uint8_t of[256][16];
  constexpr MatchTables() : of() {
    for (int a = 0; a < 256; ++a)
      for (int w = 0; w < 16; ++w) of[a][w] = static_cast<uint8_t>(matches4(a, w) | matches4(a >> 4, w) << 4);
  }
};
constexpr MatchTables tables;

// ----------------------------------------------------------------------------- four rows at once

// For every nibble, the tables of rows 0|1 and of rows 2|3.
void make_tables(const uint8_t* const rows[kTile], int64_t row_bytes, uint8_t* to) {
  const uint8_t *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
  for (int64_t i = 0; i < row_bytes; ++i, to += 2 * kTableRow) {
    const unsigned ab_low = (a[i] & 15u) | (b[i] & 15u) << 4, cd_low = (c[i] & 15u) | (d[i] & 15u) << 4;
    const unsigned ab_high = a[i] >> 4 | (b[i] & 0xf0u), cd_high = c[i] >> 4 | (d[i] & 0xf0u);
    std::memcpy(to, tables.of[ab_low], 16);
    std::memcpy(to + 16, tables.of[cd_low], 16);
    std::memcpy(to + 32, tables.of[ab_high], 16);
    std::memcpy(to + 48, tables.of[cd_high], 16);
  }
}

// The nibbles of a panel, each in a byte of its own.
template <int Vectors>
void split_nibbles(const uint8_t* panel, int64_t bytes, uint8_t* to) {
  const Vec mask = _mm256_set1_epi8(15);
  for (int64_t b = 0; b < bytes; ++b, panel += kPanel, to += 2 * Vectors * 32) {
    for (int v = 0; v < Vectors; ++v) {
      const Vec both = load(panel + 32 * v);
      store(to + 32 * v, _mm256_and_si256(both, mask));
      store(to + 32 * (Vectors + v), _mm256_and_si256(_mm256_srli_epi16(both, 4), mask));
    }
  }
}

template <int Vectors>
struct Counts {
  Vec low[2][Vectors], high[2][Vectors];  // of the first and the second row of each pair
};

// Three lookups of one vector of outputs for one pair of rows.
inline Vec three(Vec t0, Vec t1, Vec t2, const uint8_t* index, int64_t next) {
  const Vec s = _mm256_add_epi8(_mm256_shuffle_epi8(t0, load(index)), _mm256_shuffle_epi8(t1, load(index + next)));
  return _mm256_add_epi8(s, _mm256_shuffle_epi8(t2, load(index + 2 * next)));
}

inline void add(Vec s, Vec mask, Vec& all, Vec& high) {
  all = _mm256_add_epi8(all, s);
  pin(all);
  high = _mm256_add_epi8(high, _mm256_and_si256(_mm256_srli_epi16(s, 4), mask));
  pin(high);
}

inline Vec low_of(Vec all, Vec high, Vec mask) {
  return _mm256_sub_epi8(all, _mm256_slli_epi16(_mm256_and_si256(high, mask), 4));
}

// Matches of four rows with 32 * Vectors outputs over some nibbles, modulo 256. The sums have names of
// their own because the compiler would keep an array of them in memory.
template <int Vectors>
inline void count(const uint8_t* table, const uint8_t* index, int64_t nibbles, Counts<Vectors>& counts) {
  constexpr int64_t kNext = Vectors * 32;
  const Vec zero = _mm256_setzero_si256();
  Vec mask = _mm256_set1_epi8(15);
  pin(mask);
  Vec all00 = zero, all01 = zero, all10 = zero, all11 = zero;
  Vec high00 = zero, high01 = zero, high10 = zero, high11 = zero;
  for (int64_t n = 0; n < nibbles; n += kNibbles, table += kNibbles * kTableRow, index += kNibbles * kNext) {
    Vec t0 = twice(table), t1 = twice(table + kTableRow), t2 = twice(table + 2 * kTableRow);
    add(three(t0, t1, t2, index, kNext), mask, all00, high00);
    if constexpr (Vectors == 2) add(three(t0, t1, t2, index + 32, kNext), mask, all01, high01);
    t0 = twice(table + 16), t1 = twice(table + kTableRow + 16), t2 = twice(table + 2 * kTableRow + 16);
    add(three(t0, t1, t2, index, kNext), mask, all10, high10);
    if constexpr (Vectors == 2) add(three(t0, t1, t2, index + 32, kNext), mask, all11, high11);
  }
  counts.low[0][0] = low_of(all00, high00, mask), counts.high[0][0] = high00;
  counts.low[1][0] = low_of(all10, high10, mask), counts.high[1][0] = high10;
  if constexpr (Vectors == 2) {
    counts.low[0][1] = low_of(all01, high01, mask), counts.high[0][1] = high01;
    counts.low[1][1] = low_of(all11, high11, mask), counts.high[1][1] = high11;
  }
}

// The running sums of a tile between chunks: modulo 256, or in 16 bits.
template <int Vectors>
struct Sums {
  Vec even[kTile][Vectors], odd[kTile][Vectors];

  void clear() { std::memset(this, 0, sizeof *this); }

  INLINE void add(const uint8_t* table, const uint8_t* index, int64_t nibbles, bool bytes) {
    Counts<Vectors> counts;
    if (bytes) {
      count<Vectors>(table, index, nibbles, counts);
      add_bytes(counts);
      return;
    }
    for (int64_t n = 0; n < nibbles; n += kSafe) {
      count<Vectors>(table + n * kTableRow, index + n * Vectors * 32, std::min(kSafe, nibbles - n), counts);
      add_words(counts);
    }
  }

  INLINE void add_words(const Counts<Vectors>& counts) {
    UNROLL for (int r = 0; r < kTile; ++r)
      UNROLL for (int v = 0; v < Vectors; ++v) {
        const Vec c = r % 2 ? counts.high[r / 2][v] : counts.low[r / 2][v];
        even[r][v] = _mm256_add_epi16(even[r][v], even_bytes(c));
        odd[r][v] = _mm256_add_epi16(odd[r][v], odd_bytes(c));
      }
  }
  INLINE void add_bytes(const Counts<Vectors>& counts) {
    UNROLL for (int r = 0; r < kTile; ++r)
      UNROLL for (int v = 0; v < Vectors; ++v)
        even[r][v] = _mm256_add_epi8(even[r][v], r % 2 ? counts.high[r / 2][v] : counts.low[r / 2][v]);
  }
  template <Out out>
  INLINE void write(const Panel<out>& panel, const int64_t (&rows)[kTile], bool bytes) const {
    for (int r = 0; r < kTile; ++r) {
      Vec matches[4 * Vectors];
      UNROLL for (int v = 0; v < Vectors; ++v) {
        if (bytes) {
          widen_bytes(even[r][v], matches + 4 * v);
        } else {
          widen_words(even[r][v], odd[r][v], matches + 4 * v);
        }
      }
      panel.template write<Vectors>(rows[r], matches);
    }
  }
};

template <int Vectors, Out out>
INLINE void write_counts(const Counts<Vectors>& counts, const Panel<out>& panel, const int64_t (&rows)[kTile]) {
  for (int r = 0; r < kTile; ++r) {
    Vec matches[4 * Vectors];
    UNROLL for (int v = 0; v < Vectors; ++v)
        widen_bytes(r % 2 ? counts.high[r / 2][v] : counts.low[r / 2][v], matches + 4 * v);
    panel.template write<Vectors>(rows[r], matches);
  }
}

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
      const uint8_t* own = table + (t * nibbles + begin) * kTableRow;
      if (at_once) {
        Counts<Vectors> counts;
        count<Vectors>(own, index, size, counts);
        write_counts<Vectors>(counts, panel, tile.rows);
        continue;
      }
      Sums<Vectors> here;
      if (begin == 0) {
        here.clear();
      } else {
        here = sums[t];
      }
      here.add(own, index, size, bytes);
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
  uint8_t* table = scratch.take<uint8_t>(static_cast<size_t>(tiles * nibbles * kTableRow));
  for (int64_t t = 0; t < tiles; ++t) {
    const Tile tile = tile_at(t, count);
    const uint8_t* own[kTile];
    for (int64_t r = 0; r < kTile; ++r) own[r] = rows + tile.rows[r] * product.row_bytes;
    make_tables(own, product.row_bytes, table + t * nibbles * kTableRow);
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
  widen_words(even0, odd0, matches);
  if constexpr (Vectors == 2) widen_words(even1, odd1, matches + 4);
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
  if (product.register_bits) return multiply_into<Out::wrapped>(product, rows, count, first, last, sink);
  multiply_into<Out::values>(product, rows, count, first, last, sink);
}

}  // namespace

const BinaryKernels avx2_binary = {sign_row, sign_pixels, multiply};

}  // namespace proxbit
