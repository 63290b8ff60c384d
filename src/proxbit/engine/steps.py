"""Single steps of a plan: a packed layer with what stands around it in the graph of its network.

They are no modules: the layers stay where they are in their network, and a plan calls ``forward``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxbit.engine.attention import Way, attend, attend_joined, find_way
from proxbit.engine.one_row import find_parts, in_parts, takes
from proxbit.engine.packed_layers import PackedConv2d, PackedLinear
from proxbit.engine.tails import following
from proxbit.packfile.bits import byte_count


@dataclass(eq=False)
class ConvStep:
    """A packed convolution, then a sum and an activation, in one go; it can give signs as well.

    Attributes:
        layer: The convolution.
        last: Whether the network would have its output with the channels last in memory.
        inside: Whether only steps take the output, which do not mind how it lies in memory.
        activation: What follows the sum.
        signs: Whether to give the signs of the output as bits, too.
    """

    layer: PackedConv2d
    last: bool
    inside: bool = False
    activation: int = 0
    signs: bool = False

    def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
        """The output, or output and signs; ``x`` is an image of floats or of bits."""
        layer = self.layer
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


@dataclass(eq=False)
class LinearStep:
    """A packed linear layer, and a sum with other values."""

    layer: PackedLinear

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """The sum; values of another shape or type are added by torch."""
        return self.layer.plus(x, other)  # a plan holds only where nobody watches the layer


@dataclass(eq=False)
class RowStep:
    """A float linear layer; where its input is a single row, all threads take part.

    Attributes:
        layer: The layer.
        parts: Into how many it is cut, by the number of threads: the first call on so many decides.
    """

    layer: nn.Linear
    parts: dict[int, int] = field(default_factory=dict)

    def forward(self, x: Tensor) -> Tensor:
        """As the layer."""
        layer, threads = self.layer, torch.get_num_threads()
        if threads == 1 or not takes(layer, x):
            return layer.forward(x)
        if threads not in self.parts:
            self.parts[threads] = find_parts(layer, threads)
        parts = self.parts[threads]
        return layer.forward(x) if parts == 1 else in_parts(x, layer.weight, layer.bias, parts)


@dataclass(eq=False)
class PoolStep:
    """Max-pooling with the channels last, for steps: several times faster, and the same values."""

    pool: nn.MaxPool2d

    def forward(self, x: Tensor) -> Tensor:
        """The largest of each window."""
        pool = self.pool
        return functional.max_pool2d(
            x.contiguous(memory_format=torch.channels_last), pool.kernel_size, pool.stride,
            pool.padding, pool.dilation, pool.ceil_mode,
        )  # fmt: skip


@dataclass(eq=False)
class AttentionStep:
    """Attention without a mask, where a kernel has the bits of torch and is faster.

    Attributes:
        way: How the kernel computes; None where torch does.
        asked: Whether that is decided, as the first call does it.
    """

    way: Way | None = None
    asked: bool = False

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
        """As ``scaled_dot_product_attention``."""
        plain = are_absent(*rest, *options.values())
        if not self.asked:
            self.asked, self.way = True, find_way(q, k, v) if plain else None
        way = self.way
        if way is not None and plain and way.takes(q, k, v):
            return attend(way, q, k, v)
        return functional.scaled_dot_product_attention(q, k, v, *rest, **options)


@dataclass(eq=False)
class HeadsStep:
    """Attention on the output of one projection, from its cut into heads to their joining.

    Attributes:
        sizes: Batch, rows, 3 for queries, keys and values, heads, width.
        way: How the kernel computes; None where torch does.
        asked: Whether that is decided, as the first call does it.
    """

    sizes: tuple[int, ...]
    way: Way | None = None
    asked: bool = False

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
