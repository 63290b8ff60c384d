"""The one autograd function of the whole family: q on the way forward, B times g on the way back.

It is exact: the value that leaves is the very q that was computed, bit for bit (a detach trick,
``w + (q - w).detach()``, rounds about a tenth of the entries away from +-1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxbit import maps
from proxbit.maps import Strength
from proxbit.pairs import Pair


class Bind(torch.autograd.Function):
    """Let ``q`` stand for ``w``: forward gives q, backward gives w the gradient g B(w / unit) k."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        w: Tensor, q: Tensor, strength: Strength, unit: Tensor | None, factor: Tensor | None,
        pair: Pair,
    ) -> Tensor:  # fmt: skip
        """Q itself."""
        return q.view_as(q)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep w, not B(w): the weight lives anyway, its multiplier would be a copy more."""
        w, _, strength, unit, factor, pair = inputs
        ctx.pair = pair
        if pair.backward is maps.one:
            w = strength = unit = None  # nothing of them is needed
        ctx.save_for_backward(w, strength, unit, factor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """B times g."""
        (g,) = grads
        w, strength, unit, factor = ctx.saved_tensors
        if w is not None:
            g = g * ctx.pair.backward(measure(w, unit), strength)
        if factor is not None:
            g = g * factor
        return g, None, None, None, None, None


def measure(w: Tensor, unit: Tensor | None) -> Tensor:
    """The weight in its unit: what a pair sees."""
    return w if unit is None else w / unit


def quantize(w: Tensor, strength: Strength, pair: Pair) -> Tensor:
    """F(w) forward, B(w) times the gradient backward: one pair on one tensor.

    >>> from proxbit.pairs import bnn
    >>> w = torch.tensor([-2.0, 0.5], requires_grad=True)
    >>> q = quantize(w, 1.0, bnn)
    >>> q.sum().backward()
    >>> q.tolist(), w.grad.tolist()
    ([-1.0, 1.0], [0.0, 1.0])
    """
    if not w.is_floating_point():
        raise TypeError(f"cannot quantize a {w.dtype} tensor: latent weights are floating point")
    # Two 0-d tensors promote each other; a strength must never widen the weight.
    dtype = torch.float32 if w.dim() else w.dtype
    strength = torch.as_tensor(strength, device=w.device).to(dtype)
    return bind(w, pair.forward(w.detach(), strength), strength, pair)


def bind(
    w: Tensor,
    q: Tensor,
    strength: Tensor,
    pair: Pair,
    unit: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """``q`` with the gradient of ``w`` set to g B(w / unit), times ``factor`` if given."""
    return Bind.apply(w, q, strength, unit, factor, pair)
