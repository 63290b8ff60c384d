// Binary weights times float inputs with AVX-512. Rows that fill at most half of a vector, and few rows, take
// those of AVX2.
#include "weight_vectors_avx512.hpp"
#include "weight_planes_avx2.hpp"
#include "weight_vectors_avx2.hpp"

namespace proxbit {
namespace {

void exact(const Task& task, uint8_t* memory) {
  if (task.rows <= Floats32::count) exact_task<Floats32>(task, memory);
  else exact_task<Floats64>(task, memory);
}

void input8(const Task& task, uint8_t* memory) {
  if (task.rows <= Shorts32::count) input8_task<Floats32, Shorts32>(task, memory);
  else input8_task<Floats64, Shorts64>(task, memory);
}

}  // namespace

extern const WeightKernels avx512_weight;
const WeightKernels avx512_weight = {panel_place, Floats64::bytes, exact, input8, prepare, fill, planes<Floats64>};

}  // namespace proxbit
