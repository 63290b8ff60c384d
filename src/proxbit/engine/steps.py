"""Single steps of a plan: a packed layer with what stands around it in the graph of its network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.engine.attention import Way, attend, attend_joined, find_way
from proxbit.engine.one_row import find_parts, in_parts, takes
from proxbit.engine.packed_layers import PackedConv2d, PackedLinear
from proxbit.engine.tails import following
from proxbit.packfile.bits import byte_count


class ConvStep(nn.Module):
    """A packed convolution, then a sum and an activation, in one go; it can give signs as well.

    Attributes:
        last: Whether the network would have its output with the channels last in memory.
        inside: Whether only steps take the output, which do not mind how it lies in memory.
        activation: What follows the sum.
        signs: Whether to give the signs of the output as bits, too.
    """

    def __init__(self, layer: PackedConv2d, last: bool) -> None:
        """The layer stays where it is in its network."""
        super().__init__()
        self.layer, self.last, self.inside = (layer,), last, False
        self.activation, self.signs = 0, False

    def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
        """The output, or output and signs; ``x`` is an image of floats or of bits."""
        layer = self.layer[0]
        kernel = layer._kernel or layer.prepare()
        assert kernel is not None
        if kernel.bounds is not None:
            return kernel.convolve(x, layer.window)
        bits = then = None
        if layer._line is not None or other is not None or self.activation or self.signs:
            batch, high, wide = kernel.out_sizes(x, layer.window)
            if self.signs:
                size = (batch, high, wide, byte_count(kernel.width))
                bits = torch.empty(size, dtype=torch.uint8)
            if other is not None:
                other = _beside((batch, kernel.width, high, wide), other)
            then = following(layer._line, other, self.activation, bits)
        out = kernel.convolve(x, layer.window, then)
        if not (self.inside or self.last):
            out = out.contiguous()
        return out if bits is None else (out, bits)


def _beside(size: tuple[int, ...], other: Tensor) -> Tensor:
    """The other summand as it must lie beside an output of this size."""
    other = other if other.shape == size else other.expand(size)
    return other.contiguous(memory_format=torch.channels_last)


class LinearStep(nn.Module):
    """A packed linear layer, and a sum with other values."""

    def __init__(self, layer: PackedLinear) -> None:
        """The layer stays where it is in its network."""
        super().__init__()
        self.layer = (layer,)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """The sum; values of another shape or type are added by torch."""
        return self.layer[0].plus(x, other)  # a plan holds only where nobody watches the layer


class RowStep(nn.Module):
    """A float linear layer; where its input is a single row, all threads take part."""

    def __init__(self, layer: nn.Linear) -> None:
        """The layer stays where it is in its network; the first call on so many threads decides."""
        super().__init__()
        self.layer = (layer,)
        self.parts: dict[int, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        """As the layer."""
        layer, threads = self.layer[0], torch.get_num_threads()
        if threads == 1 or not takes(layer, x):
            return layer.forward(x)
        if threads not in self.parts:
            self.parts[threads] = find_parts(layer, threads)
        parts = self.parts[threads]
        return layer.forward(x) if parts == 1 else in_parts(x, layer.weight, layer.bias, parts)


class PoolStep(nn.Module):
    """Max-pooling with the channels last, for steps: several times faster, and the same values."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        """The module stays where it is in its network."""
        super().__init__()
        self.pool = (pool,)

    def forward(self, x: Tensor) -> Tensor:
        """The largest of each window."""
        pool = self.pool[0]
        return functional.max_pool2d(
            x.contiguous(memory_format=torch.channels_last), pool.kernel_size, pool.stride,
            pool.padding, pool.dilation, pool.ceil_mode,
        )  # fmt: skip


class AttentionStep(nn.Module):
    """Attention without a mask, where a kernel has the bits of torch and is faster."""

    def __init__(self) -> None:
        """The first call decides."""
        super().__init__()
        self.way: Way | None = None
        self.asked = False

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
        """As ``scaled_dot_product_attention``."""
        plain = are_absent(*rest, *options.values())
        if not self.asked:
            self.asked, self.way = True, find_way(q, k, v) if plain else None
        way = self.way
        if way is not None and plain and way.takes(q, k, v):
            return attend(way, q, k, v)
        return functional.scaled_dot_product_attention(q, k, v, *rest, **options)


class HeadsStep(nn.Module):
    """Attention on the output of one projection, from its cut into heads to their joining.

    Attributes:
        sizes: Batch, rows, 3 for queries, keys and values, heads, width.
    """

    def __init__(self, sizes: tuple[int, int, int, int, int]) -> None:
        """The first call decides whether a kernel computes."""
        super().__init__()
        self.sizes, self.asked = sizes, False
        self.way: Way | None = None

    def forward(self, qkv: Tensor) -> Tensor:
        """Rows of heads side by side."""
        batch, rows, _, heads, width = self.sizes
        if not self.asked:
            ready = qkv.is_contiguous()
            self.asked, self.way = True, find_way(*self._apart(qkv)) if ready else None
        watched = torch.is_grad_enabled() and qkv.requires_grad
        if self.way is not None and qkv.is_contiguous() and not watched:
            return attend_joined(self.way, qkv)
        q, k, v = self._apart(qkv)
        out = functional.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).reshape(batch, rows, heads * width)

    def _apart(self, qkv: Tensor) -> tuple[Tensor, ...]:
        return qkv.reshape(self.sizes).permute(2, 0, 3, 1, 4).unbind(0)


def are_absent(*options: Any) -> bool:
    """Whether attention has no mask, dropout, order or scale."""
    return all(each is None or (isinstance(each, bool | float) and not each) for each in options)
