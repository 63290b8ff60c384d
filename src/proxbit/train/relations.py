"""The distance between the token relations of two networks, without a large matrix.

The relation of a head is X X^T, tokens by tokens, and a loss would keep many of them: 60 MB for one
projection of DeiT-T with 128 images. A distance needs only their products, and <X X^T, Y Y^T> is
|X^T Y|^2: a matrix as large as a head is wide. Where there are fewer tokens than that, X X^T itself
is smaller.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def relation_distance(x: Tensor, y: Tensor, samples: int = 1) -> Tensor:
    """The mean over samples of the norm of X Xᵀ / ||X Xᵀ|| - Y Yᵀ / ||Y Yᵀ||.

    Args:
        x: The student's projection, (batch, ..., heads, tokens, d); it gets a gradient.
        y: The teacher's, which gets none; its d may be another.
        samples: How many of equal size the batch counts as: 1 takes it as a whole.

    >>> x = torch.eye(3).reshape(1, 1, 3, 3)
    >>> relation_distance(x, 5 * x), relation_distance(x[..., :1], x[..., 1:])
    (tensor(0.), tensor(1.4142))
    """
    parts = (t.reshape(samples, -1, *t.shape[-2:]) for t in (x, y.detach()))
    distances: Tensor = _Distance.apply(*parts)
    return distances.mean()


class _Distance(torch.autograd.Function):
    """One distance for each sample of (sample, head, token, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        if x.shape[-2] <= x.shape[-1]:  # few tokens
            own, mixed = x @ x.mT, y @ y.mT
            size, other, overlap = _sums(own * own), _sums(mixed * mixed), _sums(own * mixed)
        else:
            own, mixed = x.mT @ x, y.mT @ x
            size, other, overlap = (_sums(m.square()) for m in (own, y.mT @ y, mixed))
        both = (size * other).sqrt()
        # What has vanished has no direction: it is the zero vector, with a distance of 1.
        cosine = torch.where(both > 0, overlap / both, 0)
        square = (size > 0).to(size) + (other > 0).to(size) - 2 * cosine
        apart = square.clamp_min(0).sqrt()
        ctx.save_for_backward(x, y, own, mixed, size, both, cosine, apart)
        return apart.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        x, y, own, mixed, size, both, cosine, apart = ctx.saved_tensors
        moves = (apart > 0) & (both > 0)  # elsewhere a direction of descent is not defined
        g = torch.where(moves, 2 * grads[0] / apart, 0)
        along = torch.where(moves, g * cosine / size, 0)
        towards = torch.where(moves, g / both, 0)
        if x.shape[-2] <= x.shape[-1]:
            return (own * _each(along, x)).sub_(mixed * _each(towards, x)) @ x, None
        pulled = x @ (own * _each(along, x))
        return pulled.sub_(y @ (mixed * _each(towards, x))), None


def _sums(m: Tensor) -> Tensor:
    """The sum of each sample, as precise as the device has it: distances are small differences."""
    precise = m.dtype if m.device.type == "mps" else torch.float64
    return m.sum((1, 2, 3), dtype=precise)


def _each(factor: Tensor, like: Tensor) -> Tensor:
    return factor.to(like.dtype).reshape(-1, 1, 1, 1)
