"""How a file says what is binary: in floats of +-1, by QONNX's BipolarQuant, or in two bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.core import maps
from proxbit.engine.packed import PackedLayer
from proxbit.engine.packed_layers import PackedLinear
from proxbit.nn import BinaryProduct, InputQuantizer, WeightQuantizer, WrapAccumulator, cyclic, wrap
from proxbit.nn.model_weights import binary_weights
from proxbit.nn.product import Operation
from proxbit.packfile.bits import unpack_bits

BIPOLAR_QUANT = "qonnx.custom_op.general::BipolarQuant"


@dataclass(frozen=True)
class Dialect:
    """How a file says what is binary.

    Attributes:
        weights: From a weight of +-scale, and the scale, to the tensor that is multiplied.
        inputs: From a float input, and the scale 1, to its signs.
        sums: What makes a sum of +-1 products an integer for certain.
    """

    weights: Callable[[Tensor, Tensor], Tensor]
    inputs: Callable[[Tensor, Tensor], Tensor]
    sums: Callable[[Tensor], Tensor]


def _bipolar_quant(x: Tensor, scale: Tensor) -> Tensor:
    """The QONNX operator: scale where x >= 0, -scale elsewhere; it exists in a file only."""
    return torch.onnx.ops.symbolic(
        BIPOLAR_QUANT, (x, scale), dtype=x.dtype, shape=x.shape, version=1
    )


def _rounded(sums: Tensor) -> Tensor:
    """The nearest integers, none of them -0.0, which Round would make of -1e-9."""
    return (sums + 0.5).floor()


# Runtimes fold a scale behind a convolution into its weights, or convolve by fractions (Winograd):
# a sum of 0 is then 1e-9 or -1e-9, and the sign behind it a coin. Rounding forbids the first and
# mends the second. A tool that reads BipolarQuant knows by type that the sums are integers.
STANDARD = Dialect(lambda w, scale: w, lambda x, one: maps.sign(x), _rounded)
BIPOLAR = Dialect(_bipolar_quant, _bipolar_quant, lambda sums: sums)


class ConstantWeight(nn.Module):
    """A hard weight as it stands in the file, whatever Parameter it came from."""

    values: Tensor
    scale: Tensor

    def __init__(self, values: Tensor, scale: Tensor, dialect: Dialect) -> None:
        """Keep the tensors where the file finds them: as buffers."""
        super().__init__()
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.dialect = dialect

    def forward(self, _: Tensor) -> Tensor:
        """The weight that is multiplied."""
        return self.dialect.weights(self.values, self.scale)


class FloatInputs(nn.Module):
    """A product whose weight alone is binary: the scale rides on the weight."""

    float_input = True

    def __init__(self, weight: ConstantWeight) -> None:
        """Keep the weight, +-scale."""
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, op: Operation) -> Tensor:
        """One product of floats."""
        return op(x, self.weight(weight), bias)


class BinaryInputs(nn.Module):
    """A product of signs: an integer sum, a register that may wrap it, then scale and bias."""

    float_input = False
    one: Tensor
    scale: Tensor

    def __init__(
        self,
        signs: Tensor,
        scale: Tensor,
        shift: Tensor | None,
        register: tuple[int, float],
        dialect: Dialect,
    ) -> None:
        """Take the constants of a hard product; ``scale`` and ``shift`` fit the sums and inputs.

        ``register`` has bits and a slope; no bits for exact sums.
        """
        super().__init__()
        self.register_buffer("one", scale.new_ones(()))
        self.register_buffer("scale", scale)
        self.nonzero = bool(scale.all())
        self.weight = ConstantWeight(signs, self.one, dialect)
        self.shift = shift
        self.dialect, self.register = dialect, register

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, op: Operation) -> Tensor:
        """Signs, integer sum, register, scale, bias."""
        signs = self.dialect.inputs(x if self.shift is None else x - self.shift, self.one)
        sums = self.dialect.sums(op(signs, self.weight(weight), None))
        bits, slope = self.register
        held = cyclic(wrap(sums, bits), bits, slope) if bits else sums
        if bias is not None:
            return held * self.scale + (bias.reshape(-1, *self.scale.shape[1:]) + 0.0)
        if self.nonzero:
            return held * self.scale
        # No -0.0 where the scale is 0; runtimes would take out an addition of 0.
        return torch.zeros_like(self.scale) - held * -self.scale


# ------------------------------------------------------------------------------------- hard models


def as_constants(model: nn.Module, dialect: Dialect) -> nn.Module:
    """A copy in eval mode in which every hard weight is a constant of the file."""
    network = copy.deepcopy(model).eval()
    hard = {w.quantizer: w.latent for w in binary_weights(network) if w.quantizer.hard}
    for name, product in list(network.named_modules()):
        if isinstance(product, BinaryProduct) and product.weight_quantizer in hard:
            latent = hard[product.weight_quantizer]
            network.set_submodule(name, _product(product, latent, dialect))
    for name, quantizer in list(network.named_modules()):
        if isinstance(quantizer, WeightQuantizer) and quantizer in hard:  # parametrized
            network.set_submodule(name, _weight(quantizer, hard[quantizer], dialect))
    return network


def _product(product: BinaryProduct, latent: Tensor, dialect: Dialect) -> nn.Module:
    if product.float_input:
        return FloatInputs(_weight(product.weight_quantizer, latent, dialect))
    signs, scale = product.weight_quantizer.split(latent)
    inputs, wraps = product.input_quantizer, product.accumulator
    assert scale is not None and isinstance(inputs, InputQuantizer)
    register = (wraps.bits, wraps.k) if isinstance(wraps, WrapAccumulator) else (0, 0.0)
    shape = (-1, *(1 for _ in range(product.trailing)))
    return BinaryInputs(signs, scale.reshape(shape), inputs.shift, register, dialect)


def _weight(quantizer: WeightQuantizer, latent: Tensor, dialect: Dialect) -> ConstantWeight:
    _, scale = quantizer.split(latent)
    assert scale is not None
    layout = getattr(quantizer, "layout", None)  # of a parametrized one that is turned
    if layout is not None:
        latent, scale = layout.back(latent), layout.back(scale.expand_as(latent))
    return ConstantWeight(latent.clone(), scale, dialect)


# ---------------------------------------------------------------------------------- packed networks


class DenseLayer(nn.Module):
    """A packed layer by standard operators, with its weight in floats."""

    def __init__(self, layer: PackedLayer, product: nn.Module) -> None:
        """Take the product, and the geometry of the layer."""
        super().__init__()
        self.product = product
        self.bias = layer.bias
        self.layer = (layer,)  # not as a child: its bits are no part of the file

    def forward(self, x: Tensor) -> Tensor:
        """As the packed layer."""
        layer: Any = self.layer[0]
        if isinstance(layer, PackedLinear):
            return self.product(x, x, self.bias, functional.linear)
        if layer.mode != "zeros":
            x = functional.pad(x, layer.border, mode=layer.mode)
        return self.product(x, x, self.bias, layer.convolve_floats)


def dense_layer(layer: PackedLayer, dialect: Dialect = STANDARD) -> DenseLayer:
    """The same layer for a file of standard operators."""
    scale = layer.scale.float().reshape(-1, *(1 for _ in layer.shape[1:]))
    if not layer.form.binary:
        weight = ConstantWeight(unpack_bits(layer.bits, layer.shape) * scale, scale, dialect)
        return DenseLayer(layer, FloatInputs(weight))
    signs, trailing = unpack_bits(layer.bits, layer.shape), tuple(1 for _ in layer.shape[2:])
    shift = None if layer.shift is None else layer.shift.reshape(-1, *trailing)
    register = layer.form.register_bits, layer.form.slope
    sums_scale = layer.scale.float().reshape(-1, *trailing)
    return DenseLayer(layer, BinaryInputs(signs, sums_scale, shift, register, dialect))


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
