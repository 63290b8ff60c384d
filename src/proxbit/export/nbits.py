"""Linear layers of BW in ONNX Runtime's own 2-bit format, which does not need our library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from proxbit.engine.packed import PackedLayer
from proxbit.engine.packed_layers import PackedLinear
from proxbit.export.dialects import dense_layer
from proxbit.packfile.bits import unpack_bits

BLOCK = 128  # inputs that share a scale in the format; ours share one anyway
_MINUS, _NOTHING, _PLUS = 1, 2, 3  # the format's values, 2 below


def nbits_layer(layer: PackedLayer) -> nn.Module:
    """MatMulNBits for a linear layer with float inputs; standard operators for all others."""
    if isinstance(layer, PackedLinear) and not layer.form.binary:
        return TwoBitLinear(layer)
    return dense_layer(layer)


class TwoBitLinear(nn.Module):
    """A linear layer whose weights are -1 and +1 of the four values of two bits."""

    values: Tensor
    scales: Tensor

    def __init__(self, layer: PackedLinear) -> None:
        """Take the weight, and the bias as it is."""
        super().__init__()
        self.outputs, self.inputs = layer.shape
        self.bias = layer.bias
        values = two_bits(unpack_bits(layer.bits, layer.shape))
        self.register_buffer("values", values)
        scale = layer.scale.float().expand(self.outputs)
        self.register_buffer("scales", scale.repeat_interleave(values.shape[1]))

    def forward(self, x: Tensor) -> Tensor:
        """One node, and the bias behind it."""
        sizes: dict[str, Any] = {"K": self.inputs, "N": self.outputs}
        sizes |= {"bits": 2, "block_size": BLOCK}
        out = torch.onnx.ops.symbolic(
            "com.microsoft::MatMulNBits", (x, self.values, self.scales), sizes, dtype=x.dtype,
            shape=(*x.shape[:-1], self.outputs), version=1,
        )  # fmt: skip
        return out if self.bias is None else out + self.bias


def two_bits(signs: Tensor) -> Tensor:
    """Signs as [outputs, blocks, bytes]: four to a byte, the first in its lowest bits.

    >>> two_bits(torch.tensor([[1.0, -1.0]]))[0, 0, :2].tolist()  # 3 and 1, then nothing
    [167, 170]
    """
    outputs, inputs = signs.shape
    padded = torch.full((outputs, -(-inputs // BLOCK) * BLOCK), _NOTHING, dtype=torch.uint8)
    padded[:, :inputs] = torch.where(signs > 0, _PLUS, _MINUS)
    fours = padded.reshape(outputs, -1, BLOCK // 4, 4)
    return (fours << torch.arange(0, 8, 2, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)
