// A backend: what one instruction set brings. docs/kernels.md says how to add one.
#pragma once

namespace proxbit {

struct BinaryKernels;
struct WeightKernels;
struct QuantizeKernels;
struct WrapKernels;
struct AttentionKernels;
struct DepthwiseKernels;

extern const AttentionKernels portable_attention;
extern const DepthwiseKernels portable_depthwise;

struct Backend {
  const char* name;
  bool (*supported)();  // by this CPU and its system
  bool by_itself;       // whether it is taken without being asked for
  // A backend may take the kernels of another, where it has nothing better.
  const BinaryKernels& binary;
  const WeightKernels& weight;
  const QuantizeKernels& quantize;
  const WrapKernels& wrap;
  const AttentionKernels* attention = &portable_attention;
  const DepthwiseKernels* depthwise = &portable_depthwise;
};

// The chosen one. At first the best that is supported, or the one that PROXBIT_KERNELS names.
const Backend& backend();

}  // namespace proxbit
