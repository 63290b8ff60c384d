// NEON with dot products of bytes: Cortex-A55 and A76, Neoverse N1, every Apple M.
#include "backend.hpp"
#include "binary.hpp"
#include "quantize.hpp"
#include "weight.hpp"
#include "wrap.hpp"

#if defined(__linux__)
#include <sys/auxv.h>
#endif

namespace proxbit {

extern const BinaryKernels neon_binary;
extern const WeightKernels dotprod_weight;
extern const QuantizeKernels portable_quantize;
extern const WrapKernels portable_wrap;

static bool supported() {
#if defined(__linux__)
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  return getauxval(AT_HWCAP) & kDotProducts;
#elif defined(__APPLE__)
  return true;
#else
  return false;
#endif
}

extern const Backend dotprod_backend;
const Backend dotprod_backend = {"dotprod", supported, true, neon_binary, dotprod_weight,
                                 portable_quantize, portable_wrap};

}  // namespace proxbit
