// The parts of the C ABI that belong to no kernel: versions and the choice of the instruction set.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "isa.hpp"
#include "parallel.hpp"
#include "proxbit.h"

namespace proxbit {
namespace {

constexpr int kUndecided = -1;
std::atomic<int> chosen{kUndecided};

bool machine_has_avx2() {
#if defined(PROXBIT_AVX2)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
#else
  return false;
#endif
}

Isa best_isa() { return machine_has_avx2() ? Isa::avx2 : Isa::portable; }

Isa first_isa() {
  const char* asked = std::getenv("PROXBIT_KERNELS");
  return asked && !std::strcmp(asked, "portable") ? Isa::portable : best_isa();
}

}  // namespace

Isa current_isa() {
  int now = chosen.load(std::memory_order_relaxed);
  if (now == kUndecided) {
    now = static_cast<int>(first_isa());
    chosen.store(now, std::memory_order_relaxed);
  }
  return static_cast<Isa>(now);
}

}  // namespace proxbit

using proxbit::Isa;

int pb_abi(void) { return PB_ABI; }

const char* pb_isa(void) { return proxbit::current_isa() == Isa::avx2 ? "avx2" : "portable"; }

int pb_use_isa(const char* name) {
  Isa isa = proxbit::best_isa();
  if (name && !std::strcmp(name, "portable")) {
    isa = Isa::portable;
  } else if (name && (std::strcmp(name, "avx2") || isa != Isa::avx2)) {
    return PB_NO_SUCH_ISA;
  }
  proxbit::chosen.store(static_cast<int>(isa));
  return PB_OK;
}

void pb_use_team(pb_team team) { proxbit::use_team(team); }
