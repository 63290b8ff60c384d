// Which instruction set the kernels use now.
#pragma once

namespace proxbit {

enum class Isa { portable, avx2 };

// The chosen one; on first use the best that this machine has, or what the environment variable
// PROXBIT_KERNELS names.
Isa current_isa();

}  // namespace proxbit
