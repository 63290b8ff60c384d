"""Packed networks: one bit per weight on disk and in memory, and kernels that compute on bits."""

from proxbit.engine.loading import load
from proxbit.engine.packed import PackedLayer
from proxbit.engine.packed_layers import PackedConv1d, PackedConv2d, PackedLinear
from proxbit.engine.packing import pack
from proxbit.engine.saving import save
from proxbit.engine.summary import Part, Summary, summary
from proxbit.kernels.inference import KernelWarning, isa

__all__ = [
    "KernelWarning", "PackedConv1d", "PackedConv2d", "PackedLayer", "PackedLinear", "Part",
    "Summary", "isa", "load", "pack", "save", "summary",
]  # fmt: skip
