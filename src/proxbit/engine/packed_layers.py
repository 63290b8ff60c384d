"""Packed linear layers and convolutions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.engine import ops
from proxbit.engine.forms import ConvGeometry
from proxbit.engine.packed import PackedLayer, packed_layers
from proxbit.engine.tails import following
from proxbit.packfile.bits import byte_count
from proxbit.packfile.contents import PackedWeight
from proxbit.util.modes import hooked


class PackedLinear(PackedLayer):
    """A linear layer in bits."""

    @property
    def in_features(self) -> int:
        """Size of the last dim of the input."""
        return self.shape[1]

    @property
    def out_features(self) -> int:
        """Size of the last dim of the output."""
        return self.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """Scale * (signs . x) + bias; or the bits of the next layer's input, where it is fused."""
        if ops.is_symbol(x):
            return ops.as_node(self, x)
        if ops.in_graph():
            return self._traced(x)
        kernel, flat = self._kernel if self.route == "bits" else None, x.dim() == 2
        ready = kernel is not None and flat and x.dtype == torch.float32 and x.is_cpu
        if ready and x.shape[1] == self.shape[1] and x.stride(1) == 1:  # the short way
            out = kernel.linear(x)  # type: ignore[union-attr]
            return self.rest(out) if self.after else out
        width = self._width(x)
        kernel = self.kernel_for(x)
        if kernel is None:
            return self.by_torch(x, functional.linear)
        rows = x if flat else x.reshape(-1, width)
        out = kernel.linear(rows if rows.stride(1) == 1 else rows.contiguous())
        out = out if flat else out.view(*x.shape[:-1], out.shape[1])
        return self.rest(out) if self.after else out

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """The sum of the output and other values, by the kernel itself where these lie alike."""
        kernel = None if self.after else self.kernel_for(x)
        alike = other.shape == (*x.shape[:-1], self.shape[0]) and other.dtype == torch.float32
        if kernel is None or kernel.bounds is not None or not alike or not other.is_contiguous():
            return self.forward(x) + other
        rows = x.reshape(-1, self._width(x))
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        return kernel.linear(rows, following(other=other)).view_as(other)

    def _width(self, x: Tensor) -> int:
        """Size of the last dimension, of floats or bits; it must fit."""
        bits = x.dtype == torch.uint8 and self.sources
        width = byte_count(self.shape[1]) if bits else self.shape[1]
        if x.dim() == 0 or x.shape[-1] != width:
            raise ValueError(
                f"this layer takes {self.shape[1]} values in the last dimension, "
                f"and the input has the shape {tuple(x.shape)}"
            )
        return width

    def _traced(self, x: Tensor) -> Tensor:
        if not ops.is_traced():  # the operator checks sizes by itself
            self._width(x)
        if not self.traceable(x):
            return self.by_torch(x, functional.linear)
        return self.rest(ops.linear(x.detach(), *self.operands()))


# Bits of images that lay in memory with their channels last are int8, of others uint8.
_BITS = (torch.int8, torch.uint8)


class _PackedConv(PackedLayer):
    """A convolution in bits, of any padding mode."""

    def __init__(self, weight: PackedWeight, conv: nn.modules.conv._ConvNd, precision: int) -> None:
        """Take the geometry of ``conv``, and its bias."""
        super().__init__(weight, conv.bias, conv.groups, precision)
        self.border = tuple(conv._reversed_padding_repeated_twice)
        self.mode = conv.padding_mode
        self.stride, self.dilation, self.groups = conv.stride, conv.dilation, conv.groups
        self.window = self._window()
        even = self.mode == "zeros" and self.border[::2] == self.border[1::2]
        zeros = not self.form.binary or self.pad_value == 0 or not any(self.border)
        self._even_border = self.border[::-2] if even and zeros else None

    def _window(self) -> ConvGeometry:
        """The geometry with two dimensions, and the border that the kernel adds."""
        lift = (1,) if len(self.shape) == 3 else ()
        border = self.border if self.mode == "zeros" else tuple(0 for _ in self.border)
        around = (*border[2:], *border[:2]) if len(border) == 4 else (0, 0, *border)
        kernel, stride, dilation = (
            (*lift, *values) for values in (self.shape[2:], self.stride, self.dilation)
        )
        return ConvGeometry(kernel, stride, dilation, around)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Scale * conv(pad(x), signs) + bias; or bits, as in a linear layer.

        Floats leave in the memory format in which they came, as torch's convolution gives them: so
        what follows takes the same kernels of torch, and the same bits, as in the hard network.
        """
        if ops.is_symbol(x):
            return ops.as_node(self, x)
        if self.route == "float" and (out := self._at_once(x)) is not None:
            return out
        dims = len(self.shape)
        if x.dim() == dims - 1:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        at, channels = (1, self.shape[1] * self.groups)
        last = x.dtype == torch.int8 or (x.dim() > 1 and x.stride(1) == 1 and not x.is_contiguous())
        if x.dtype in _BITS and self.sources:
            x, at, channels = x.view(torch.uint8), -1, byte_count(channels)
        if x.dim() != dims or (not ops.is_traced() and x.shape[at] != channels):
            raise ValueError(
                f"this layer takes images of {self.shape[1] * self.groups} channels in {dims} "
                f"dimensions, and the input has the shape {tuple(x.shape)}"
            )
        if self.mode != "zeros":
            x = functional.pad(x, self.border, mode=self.mode)
        out = self._convolve((x.unsqueeze(2) if dims == 3 else x).detach())
        if out is None:
            return self.by_torch(x, self.convolve_floats)
        out = out.squeeze(2) if dims == 3 else out
        if out.dtype == torch.uint8:
            return out.view(torch.int8) if last else out
        whole = self.in_line(out)
        out = out if last else out.contiguous()
        return out if whole else self.rest(out)

    def _at_once(self, x: Tensor) -> Tensor | None:
        """By torch, where nothing is left to decide: a call of Python costs, too."""
        weight, padding, bias = self._dense, self._even_border, self._parameters["bias"]
        if weight is None or padding is None or self.after or x.dim() != weight.dim():
            return None
        alike = x.dtype == weight.dtype and x.device == weight.device and not self.form.binary
        if not alike or x.shape[1] != self.shape[1] * self.groups or ops.in_graph():
            return None
        if bias is not None and bias.dtype != x.dtype:
            return None
        convolve = functional.conv1d if weight.dim() == 3 else functional.conv2d
        weight = self._beside(x, weight)
        return convolve(x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def _convolve(self, image: Tensor) -> Tensor | None:
        """With a kernel, or as its operator in a graph; None where neither fits."""
        if ops.in_graph():
            if not self.traceable(image):
                return None
            return ops.convolve(image, *self.operands(), ops.flat(self.window))
        kernel = self.kernel_for(image)
        return None if kernel is None else kernel.convolve(image, self.window)

    def convolve_floats(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """By torch, with the border that this layer adds; torch itself can add one of zeros."""
        padding = self._even_border
        if padding is None and self.mode == "zeros":
            x = functional.pad(x, self.border, value=self.pad_value if self.form.binary else 0.0)
        convolve = functional.conv1d if len(self.shape) == 3 else functional.conv2d
        weight = self._beside(x, weight)
        return convolve(x, weight, bias, self.stride, padding or 0, self.dilation, self.groups)

    def _beside(self, x: Tensor, weight: Tensor) -> Tensor:
        """The layer's own weight in the memory format of the input; torch converts in each call."""
        if weight is not self._dense or weight.dim() != 4 or ops.in_graph():
            return weight
        last = x.stride(1) == 1 and not x.is_contiguous()
        layout = torch.channels_last if last else torch.contiguous_format
        if weight.is_contiguous(memory_format=layout):
            return weight
        with torch.inference_mode(False):
            self._dense = weight.contiguous(memory_format=layout)
        return self._dense


class PackedConv1d(_PackedConv):
    """A 1-d convolution in bits."""


class PackedConv2d(_PackedConv):
    """A 2-d convolution in bits."""


@contextmanager
def noted_inputs(net: nn.Module) -> Iterator[dict[PackedLayer, Tensor]]:
    """Note the first input of each packed layer during the forwards of this thread inside."""
    seen: dict[PackedLayer, Tensor] = {}
    me = threading.get_ident()

    def note(layer: Any, given: tuple[Any, ...]) -> None:
        if threading.get_ident() == me and given and isinstance(given[0], Tensor):
            seen.setdefault(layer, given[0])

    with hooked(layer.register_forward_pre_hook(note) for _, layer in packed_layers(net)):
        yield seen
