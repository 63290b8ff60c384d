// Binary weights times float inputs with AVX2.
#include "weight_planes_avx2.hpp"
#include "weight_vectors_avx2.hpp"

namespace proxbit {
namespace {

void exact(const Task& task, uint8_t* memory) { exact_task<Floats32>(task, memory); }
void input8(const Task& task, uint8_t* memory) { input8_task<Floats32, Shorts32>(task, memory); }

}  // namespace

extern const WeightKernels avx2_weight;
const WeightKernels avx2_weight = {panel_place, Floats32::bytes, exact, input8, prepare, fill, planes<Floats32>};

}  // namespace proxbit
