// Binary weights times float inputs with NEON.
#include "weight_planes_neon.hpp"
#include "weight_rows.hpp"
#include "weight_vectors_neon.hpp"

namespace proxbit {
namespace {

void exact(const Task& task, uint8_t* memory) { exact_task<Floats>(task, memory); }
void input8(const Task& task, uint8_t* memory) { input8_task<Floats, Shorts>(task, memory); }

}  // namespace

extern const WeightKernels neon_weight;
const WeightKernels neon_weight = {panel_place, Floats::bytes, exact, input8, prepare, fill, planes};

}  // namespace proxbit
