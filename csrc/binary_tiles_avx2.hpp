// Four rows at once: tables of matches, lookups, and the sums they add up to.
#pragma once

#include <algorithm>
#include <cstring>

#include "binary.hpp"
#include "binary_panel_avx2.hpp"
#include "vector_avx2.hpp"

namespace proxbit {
namespace {

constexpr int64_t kStep = 3;                 // bytes of a row that two inner steps take
constexpr int64_t kNibbles = 3;              // nibbles that one inner step takes
constexpr int64_t kTile = 4;                 // rows that share one pass over a panel
constexpr int64_t kSafe = 63;                // nibbles until a count of matches could pass 255
constexpr int64_t kChunk = 4 * kSafe;        // nibbles of a panel that stay in L1 beside the tables
constexpr int64_t kTable = 16;               // bytes of the table of one nibble, for a pair of rows

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

// The tables of a pair of rows, one for each nibble.
inline void make_pair(const uint8_t* a, const uint8_t* b, int64_t bytes, uint8_t* to) {
  for (int64_t i = 0; i < bytes; ++i, to += 2 * kTable) {
    std::memcpy(to, tables.of[(a[i] & 15u) | (b[i] & 15u) << 4], kTable);
    std::memcpy(to + kTable, tables.of[a[i] >> 4 | (b[i] & 0xf0u)], kTable);
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

// Matches of two pairs of rows with 32 * Vectors outputs over some nibbles, modulo 256. The sums have names of
// their own because the compiler would keep an array of them in memory.
template <int Vectors>
inline void count(const uint8_t* first, const uint8_t* second, const uint8_t* index, int64_t nibbles,
                  Counts<Vectors>& counts) {
  constexpr int64_t kNext = Vectors * 32;
  const Vec zero = _mm256_setzero_si256();
  Vec mask = _mm256_set1_epi8(15);
  pin(mask);
  Vec all00 = zero, all01 = zero, all10 = zero, all11 = zero;
  Vec high00 = zero, high01 = zero, high10 = zero, high11 = zero;
  for (int64_t n = 0; n < nibbles; n += kNibbles, index += kNibbles * kNext) {
    Vec t0 = twice(first), t1 = twice(first + kTable), t2 = twice(first + 2 * kTable);
    first += kNibbles * kTable;
    add(three(t0, t1, t2, index, kNext), mask, all00, high00);
    if constexpr (Vectors == 2) add(three(t0, t1, t2, index + 32, kNext), mask, all01, high01);
    t0 = twice(second), t1 = twice(second + kTable), t2 = twice(second + 2 * kTable);
    second += kNibbles * kTable;
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

  INLINE void add(const uint8_t* first, const uint8_t* second, const uint8_t* index, int64_t nibbles,
                  bool bytes) {
    Counts<Vectors> counts;
    if (bytes) {
      count<Vectors>(first, second, index, nibbles, counts);
      add_bytes(counts);
      return;
    }
    for (int64_t n = 0; n < nibbles; n += kSafe) {
      count<Vectors>(first + n * kTable, second + n * kTable, index + n * Vectors * 32,
                     std::min(kSafe, nibbles - n), counts);
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
          panel.from_counts(even[r][v], matches + 4 * v);
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
        panel.from_counts(r % 2 ? counts.high[r / 2][v] : counts.low[r / 2][v], matches + 4 * v);
    panel.template write<Vectors>(rows[r], matches);
  }
}

}  // namespace
}  // namespace proxbit
