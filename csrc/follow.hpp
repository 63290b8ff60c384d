// What follows a layer in its network: a norm, a sum with other values, an activation, the signs.
#pragma once

#include <cstdint>

#include "proxbit.h"

namespace proxbit {

bool sound(const pb_following& how);

// Rows [first, first + count) of `values`: one pass, while they are in the cache of whoever wrote them.
void follow_rows(const pb_following& how, float* values, int64_t width, int64_t first, int64_t count);

// All rows.
void follow(const pb_following& how, float* values, int64_t rows, int64_t width, int threads);

}  // namespace proxbit
