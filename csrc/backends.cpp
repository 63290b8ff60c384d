// The list of the backends, and the only place that chooses one.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "backend.hpp"
#include "proxbit.h"

namespace proxbit {

// CMake writes the list, the best first: PROXBIT_BACKEND(name) for each name_backend that it compiles.
#define PROXBIT_BACKEND(name) extern const Backend name##_backend;
#include "backends.inc"
#undef PROXBIT_BACKEND

namespace {

#define PROXBIT_BACKEND(name) &name##_backend,
const Backend* const kBackends[] = {
#include "backends.inc"
};
#undef PROXBIT_BACKEND

#define PROXBIT_BACKEND(name) #name " "
constexpr char kNames[] =
#include "backends.inc"
    ;
#undef PROXBIT_BACKEND

std::atomic<const Backend*> chosen{nullptr};

const Backend* supported_backend(const char* name) {
  for (const Backend* each : kBackends)
    if ((name ? !std::strcmp(each->name, name) : each->by_itself) && each->supported()) return each;
  return nullptr;
}

const Backend& first_choice() {
  const char* asked = std::getenv("PROXBIT_KERNELS");
  const Backend* found = asked ? supported_backend(asked) : nullptr;
  return found ? *found : *supported_backend(nullptr);  // plain C++ is always supported
}

}  // namespace

const Backend& backend() {
  const Backend* now = chosen.load(std::memory_order_acquire);
  if (!now) chosen.store(now = &first_choice(), std::memory_order_release);
  return *now;
}

}  // namespace proxbit

using namespace proxbit;

const char* pb_backends(void) { return kNames; }

int pb_supports(const char* name) { return name && supported_backend(name) != nullptr; }

const char* pb_isa(void) { return backend().name; }

int pb_use_isa(const char* name) {
  const Backend* found = supported_backend(name);
  if (!found) return PB_NO_SUCH_ISA;
  chosen.store(found, std::memory_order_release);
  return PB_OK;
}
