// Laws of quantizers and accumulators in training.
#include <memory>

#include "laws.hpp"

namespace {

struct Quantizer {
  pb_quantizer how{};
  Guarded values, gradient, strength, shift, factors;
};

std::shared_ptr<Quantizer> draw_quantizer(Random& random, int32_t first_map) {
  pb_quantizer how{};
  how.rows = random.from(1, 6), how.columns = random.size(60, 2600);
  how.map = static_cast<int32_t>(random.from(first_map, first_map + 5));
  how.sharp = random.once_in(5);
  how.height = random.one_of({-1.0f, 0.0f, 0.3f, 2.0f});
  const int64_t kind = random.from(0, 3);
  how.shifts = kind == 1 ? how.rows : kind == 2 ? 1 : 0;
  const int64_t shifts = kind == 0 ? 0 : kind == 3 ? how.columns : how.shifts;
  const int64_t count = how.rows * how.columns;
  const std::vector<float> strength{random.one_of({0.0f, 1e-6f, 0.01f, 0.5f, 1.0f, 5.0f, 30.0f, 1e6f})};
  auto made = std::make_shared<Quantizer>(Quantizer{how, Guarded(random.inputs(count)),
                                                    Guarded(random.inputs(count)), Guarded(strength),
                                                    Guarded(random.normals(shifts)),
                                                    Guarded(random.normals(how.rows))});
  made->how.strength = made->strength.floats();
  if (shifts) made->how.shift = made->shift.floats();
  return made;
}

std::string about(const pb_quantizer& how) {
  return text({{"rows", how.rows}, {"columns", how.columns}, {"map", how.map}, {"shifts", how.shifts},
               {"sharp", how.sharp}, {"strength in millionths", static_cast<int64_t>(*how.strength * 1e6f)}});
}

Case quantize_case(Random& random) {
  const auto q = draw_quantizer(random, PB_SIGN);
  const auto unit_kind = static_cast<int32_t>(random.from(0, 2)), scale_kind = static_cast<int32_t>(random.from(0, 3));
  const auto per_layer = static_cast<int32_t>(random.from(0, 1)), scaled = static_cast<int32_t>(random.from(0, 1));
  const int threads = static_cast<int>(random.from(1, 3));
  const auto call = [=](Outputs& outputs) {
    float* unit = outputs.floats(q->how.rows);
    unit[0] = 0.7f;
    float* scale = outputs.floats(q->how.rows);
    float* out = outputs.floats(q->how.rows * q->how.columns);
    return pb_quantize(&q->how, q->values.floats(), unit_kind, scale_kind, per_layer, scaled, unit, scale, out, threads);
  };
  return {about(q->how) + text({{"unit", unit_kind}, {"scale", scale_kind}, {"per_layer", per_layer}}), call};
}

Case pull_case(Random& random) {
  const auto q = draw_quantizer(random, PB_INSIDE);
  const int64_t units = random.one_of<int64_t>({0, 1, q->how.rows});
  const int64_t factors = random.one_of<int64_t>({0, 1, q->how.rows});
  const int threads = static_cast<int>(random.from(1, 3));
  const auto call = [=](Outputs& outputs) {
    return pb_pull(&q->how, q->values.floats(), q->gradient.floats(), q->factors.floats(), units,
                   q->factors.floats(), factors, outputs.floats(q->how.rows * q->how.columns), threads);
  };
  return {about(q->how) + text({{"units", units}, {"factors", factors}}), call};
}

// Values and gradients as any pairs of bytes, NaN and infinity among them.
Case bf16_case(Random& random) {
  const bool back = random.once_in(2);
  const auto q = draw_quantizer(random, back ? int32_t{PB_INSIDE} : int32_t{PB_SIGN});
  const int64_t count = q->how.rows * q->how.columns, pairs = (count + 1) / 2;
  const auto x = std::make_shared<Guarded>(random.inputs(pairs)), g = std::make_shared<Guarded>(random.inputs(pairs));
  const int threads = static_cast<int>(random.from(1, 3));
  const auto call = [=](Outputs& outputs) {
    const auto half = [](Guarded& memory) { return reinterpret_cast<uint16_t*>(memory.data()); };
    auto* out = reinterpret_cast<uint16_t*>(outputs.bytes(2 * count));
    if (!back) return pb_quantize_bf16(&q->how, half(*x), out, threads);
    const float* units = q->factors.floats();
    return pb_pull_bf16(&q->how, half(*x), half(*g), units, q->how.rows, units, 1, out, threads);
  };
  return {about(q->how) + text({{"back", back}}), call};
}

Case wrap_case(Random& random) {
  const int64_t n = random.size(200, 70000);
  const auto bits = static_cast<int32_t>(random.from(2, 24));
  const double k = random.one_of({0.5, 1.0, 2.0, 3.7});
  std::vector<float> sums = random.inputs(n);
  const int64_t most = int64_t{4} << bits;
  if (random.once_in(2))
    for (float& z : sums) z = static_cast<float>(random.from(-most, most));
  const auto z = std::make_shared<Guarded>(sums);
  const auto g = std::make_shared<Guarded>(random.inputs(n));
  const bool marks = !random.once_in(4);
  const auto call = [=](Outputs& outputs) {
    float* out = outputs.floats(n);
    uint8_t* back = outputs.bytes(n);
    uint8_t* counted = outputs.bytes(8);
    int64_t overflows = 0;
    const int code = pb_wrap(z->floats(), n, bits, k, out, marks ? back : nullptr, &overflows, 2);
    std::memcpy(counted, &overflows, 8);
    if (code || !marks) return code;
    return pb_wrap_pull(back, g->floats(), n, k, outputs.floats(n), 2);
  };
  return {text({{"n", n}, {"bits", bits}, {"k in tenths", static_cast<int64_t>(k * 10)}}), call};
}

}  // namespace

const std::vector<Law> training_laws = {
    {"quantize", 400, quantize_case}, {"pull", 300, pull_case}, {"bf16", 200, bf16_case}, {"wrap", 150, wrap_case}};
