"""What the border of a binary image adds to a convolution, without padding a whole batch.

Padding binary inputs with ones adds the same to every image: the sums of one image that is all
border. They differ from zero in the outermost lines only, so the way back sums nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Lines = tuple[tuple[int, int], ...]


def inner_lines(sizes: Sequence[int], pads: Sequence[int], layer: Any) -> Lines:
    """For each dimension of an image, the first output that sees no border and the next that does.

    >>> inner_lines((8,), (1,), torch.nn.Conv1d(1, 1, 3))
    ((1, 7),)
    """
    lines = []
    for size, pad, kernel, stride, dilation in zip(
        sizes, pads, layer.kernel_size, layer.stride, layer.dilation, strict=True
    ):
        first = -(-pad // stride)
        last = -(-(size + pad - dilation * (kernel - 1)) // stride)
        lines.append((first, max(first, last)))
    return tuple(lines)


class AddBorder(torch.autograd.Function):
    """Add one image to all of a batch; it is zero within ``lines``."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, border: Tensor, lines: Lines) -> Tensor:
        """The sums with those of the border."""
        ctx.lines = lines
        return sums + border

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """The border gets the sum over the batch, where it is not zero."""
        (g,) = grads
        border = torch.zeros_like(g[:1])
        place = [slice(None)] * g.dim()
        for dim, (first, last) in enumerate(ctx.lines, start=2):
            for outside in (slice(first), slice(last, None)):
                place[dim] = outside
                border[tuple(place)] = g[tuple(place)].sum(0, keepdim=True)
            place[dim] = slice(first, last)
        return g, border, None
