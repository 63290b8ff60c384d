"""Packed layers as operators of the domain ``proxbit``: one bit per weight in the ONNX file too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.engine.forms import INPUT8
from proxbit.engine.fusing import fuse
from proxbit.engine.packed import PackedLayer, packed_layers
from proxbit.engine.packed_layers import PackedLinear
from proxbit.engine.routes import FEWEST
from proxbit.engine.tails import with_norm
from proxbit.export.dialects import dense_layer
from proxbit.packfile.bits import byte_count, pack_bits

DOMAIN = "proxbit"
FORMAT = 1  # of our nodes: the first one, which they need not name
BITS_IN, BITS_OUT = "bits_in", "bits_out"  # notes on a node, until its inputs find their places
_SLOPE = 2.0  # of a register, where a node says nothing
_ACTIVATIONS = ("none", "relu", "gelu", "hardtanh")


def as_operators(net: nn.Module) -> nn.Module:
    """Exchange the layers of a packed network, which is ours, for operators; it is fused first."""
    for _, layer in packed_layers(net):
        if not layer.sources:
            # A time measured here means nothing on another machine.
            depthwise = layer.form.groups > 1 and layer.form.products < FEWEST
            layer.take("float" if depthwise else "bits")
    fuse(net, depthwise=False)  # an operator with groups takes and gives floats
    return exchanged(net, operator_layer)


def exchanged(net: nn.Module, twin: Callable[[PackedLayer], nn.Module]) -> nn.Module:
    """The network with each packed layer replaced, at all of its places by one twin."""
    twins: dict[PackedLayer, nn.Module] = {}
    for name, layer in list(net.named_modules(remove_duplicate=False)):
        if isinstance(layer, PackedLayer):
            if layer not in twins:
                twins[layer] = twin(layer)
            if not name:
                return twins[layer]
            net.set_submodule(name, twins[layer])
    return net


def operator_layer(layer: PackedLayer) -> nn.Module:
    """The layer as one operator; where no kernel fits, a standard one."""
    return OperatorLayer(layer) if layer.route == "bits" else dense_layer(layer)


class OperatorLayer(nn.Module):
    """A packed layer as a node of the file, with what is fused behind it."""

    def __init__(self, layer: PackedLayer) -> None:
        """Take the tensors as the file holds them, and the attributes."""
        super().__init__()
        self.linear, self.binary = isinstance(layer, PackedLinear), layer.form.binary
        self.takes_bits, self.shape = bool(layer.sources), layer.shape
        self.layer = (layer,)  # not as a child: the file holds what follows, and nothing else
        scale: Tensor = layer.scale.float()
        bias: Tensor | None = layer.bias
        if layer.after and not layer.target and isinstance(layer.after[0], nn.BatchNorm2d):
            scale, bias = with_norm(scale.expand(layer.shape[0]), bias, layer.after[0])
        bounds = layer.bounds() if layer.target else None
        self.hands_on_bits = bounds is not None
        if bounds is not None:  # which hold all that follows the sums
            scale, bias = torch.ones(1), None
        bias = None if bias is None else bias + 0.0  # no -0.0
        tensors: dict[str, Tensor | None] = {"bits": layer.bits, "scale": scale, "bias": bias}
        if self.binary:
            low, high, flip = bounds or (None, None, None)
            flip = pack_bits(flip) if flip is not None and bool(flip.any()) else None
            tensors |= {"threshold": layer.shift, "low": low, "high": high, "flip": flip}
        self.names = tuple(tensors)
        for name, tensor in tensors.items():
            self.register_buffer(name, None if tensor is None else tensor.detach())
        self.attributes = _attributes(layer)

    def forward(self, x: Tensor) -> Tensor:
        """One node; bits in and out are bytes."""
        layer: Any = self.layer[0]
        if self.linear:
            wide = byte_count(self.shape[0]) if self.hands_on_bits else self.shape[0]
            return self._call("Linear", x, (*x.shape[:-1], wide))
        if x.dim() == len(self.shape) - 1:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        if layer.mode != "zeros":
            x = functional.pad(x, layer.border, mode=layer.mode)
        return self._call("Conv", x, self._images(x, layer))

    def _images(self, x: Tensor, layer: Any) -> tuple[Any, ...]:
        """The shape of a convolution's output; bits have their channels last."""
        sizes = x.shape[1:-1] if self.takes_bits else x.shape[2:]
        flat = len(self.shape) == 3
        height, width = (1, sizes[0]) if flat else sizes
        out = layer.window.out_size(height, width)[1 if flat else 0 :]
        if self.hands_on_bits:
            return (x.shape[0], *out, byte_count(self.shape[0]))
        return (x.shape[0], self.shape[0], *out)

    def _call(self, kind: str, x: Tensor, shape: tuple[Any, ...]) -> Tensor:
        inputs = (x, *(getattr(self, name) for name in self.names))
        notes = {BITS_IN: int(self.takes_bits), BITS_OUT: int(self.hands_on_bits)}
        name = f"{'Binary' if self.binary else 'Weight'}{kind}"
        dtype = torch.uint8 if self.hands_on_bits else torch.float32
        return torch.onnx.ops.symbolic(
            f"{DOMAIN}::{name}", inputs, self.attributes | notes, dtype=dtype, shape=shape,
            version=FORMAT,
        )  # fmt: skip


def _attributes(layer: PackedLayer) -> dict[str, Any]:
    """The attributes that differ from an operator's defaults, and the shape of the weight."""
    form = layer.form
    found: dict[str, Any] = {"shape": list(layer.shape)}
    if form.activation:
        found["activation"] = _ACTIVATIONS[form.activation]
    if form.register_bits:
        found["register_bits"] = form.register_bits
        if form.slope != _SLOPE:
            found["slope"] = float(form.slope)
    if form.precision == INPUT8 and not form.binary:
        found["precision"] = "input8"
    return found if isinstance(layer, PackedLinear) else found | _window(layer)


def _window(layer: Any) -> dict[str, Any]:
    window, form = layer.window, layer.form
    axes = slice(len(layer.shape) == 3, 2)  # a 1-d convolution has a width alone
    top, bottom, left, right = window.padding
    first, last = (top, left)[axes], (bottom, right)[axes]
    given = {"strides": window.stride[axes], "dilations": window.dilation[axes]}
    found: dict[str, Any] = {k: list(v) for k, v in given.items() if set(v) != {1}}
    if any(window.padding):
        found["pads"] = [*first, *last]
        if form.binary and not form.pad_bit:
            found["pad_value"] = -1
    if form.groups > 1:
        found["group"] = form.groups
    return found
