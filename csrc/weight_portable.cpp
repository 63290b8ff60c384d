// The kernels in plain C++: the measure for the others, and for machines without AVX2.
#include "weight_lanes.hpp"
#include "weight_planes.hpp"

namespace proxbit {
namespace {

using Floats = FloatLanes<32>;
using Shorts = ShortLanes<32>;

void exact(const Task& task, uint8_t* memory) { exact_task<Floats>(task, memory); }
void input8(const Task& task, uint8_t* memory) { input8_task<Floats, Shorts>(task, memory); }

}  // namespace

extern const WeightKernels portable_weight;
const WeightKernels portable_weight = {panel_place, Floats::bytes, exact, input8, prepare, fill, planes};

}  // namespace proxbit
