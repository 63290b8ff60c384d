"""The one autograd function of the whole family: q in the forward pass, B times g in the backward.

It is exact: the value that leaves is the very q that was computed, bit for bit (a detach trick,
``w + (q - w).detach()``, rounds about a tenth of the entries away from +-1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxbit.core import maps
from proxbit.core.maps import Strength
from proxbit.core.pairs import Pair
from proxbit.kernels import training as fused


class SurrogateGradient(torch.autograd.Function):
    """Let ``q`` stand for ``w``: its gradient g goes to w as g B(v) k, with v = (w - shift) / unit.

    The shift gets the opposite, summed over all that share it.
    """

    @staticmethod
    def forward(
        ctx: Any, w: Tensor, q: Tensor, strength: Strength, unit: Tensor | None,
        factor: Tensor | None, shift: Tensor | None, pair: Pair,
    ) -> Tensor:  # fmt: skip
        """Return ``q`` unchanged."""
        _keep(ctx, w, strength, unit, factor, shift, pair)
        return q.view_as(q)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """B times g."""
        w, strength, unit, factor, shift = ctx.saved_tensors
        (g,) = grads
        if w is not None:
            g = _through(ctx.pair, w, g, strength, unit, factor, shift)
        elif factor is not None:
            g = g * factor
        opposite = None
        if shift is not None and ctx.needs_input_grad[5]:
            opposite = -g.sum_to_size(shift.shape)
        return g, None, None, None, None, opposite, None


class TransformedSurrogateGradient(torch.autograd.Function):
    """The same for ``torch.func`` and ``torch.compile``, in the form they ask for.

    Anywhere else it would cost 50 us a call: PyTorch reads the signature of ``forward`` each time.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        w: Tensor, q: Tensor, strength: Strength, unit: Tensor | None, factor: Tensor | None,
        shift: Tensor | None, pair: Pair,
    ) -> Tensor:  # fmt: skip
        """Return ``q`` unchanged."""
        return q.view_as(q)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what the way back needs."""
        w, _, *others = inputs
        _keep(ctx, w, *others)

    backward = staticmethod(SurrogateGradient.backward)


def _keep(
    ctx: Any, w: Tensor | None, strength: Strength | None, unit: Tensor | None,
    factor: Tensor | None, shift: Tensor | None, pair: Pair,
) -> None:  # fmt: skip
    """Keep w, not v or B(v): the weight is kept anyway, and they would be extra copies."""
    ctx.pair = pair
    if pair.backward is maps.one:
        w = strength = unit = None  # nothing of them is needed
    ctx.save_for_backward(w, strength, unit, factor, shift)


def _through(
    pair: Pair, w: Tensor, g: Tensor, strength: Tensor, unit: Tensor | None,
    factor: Tensor | None, shift: Tensor | None,
) -> Tensor:  # fmt: skip
    if not torch.is_grad_enabled():  # a second derivative needs torch's own operators
        once = fused.backward(pair.backward, w, g, strength, unit, factor, shift)
        if once is not None:
            return once
    g = g * pair.backward(in_units(w, unit, shift), strength)
    return g if factor is None else g * factor


def in_units(w: Tensor, unit: Tensor | None, shift: Tensor | None = None) -> Tensor:
    """The weight minus its shift, in its unit: what a pair sees."""
    v = w if shift is None else w - shift
    return v if unit is None else v / unit


def quantize(w: Tensor, strength: Strength, pair: Pair) -> Tensor:
    """F(w) forward, B(w) times the gradient backward: one pair on one tensor.

    >>> from proxbit.core.pairs import bnn
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
    q = fused.forward(pair.forward, w, strength)
    q = pair.forward(w.detach(), strength) if q is None else q
    return surrogate_gradient(w, q, strength, pair)


def surrogate_gradient(
    w: Tensor,
    q: Tensor,
    strength: Tensor,
    pair: Pair,
    unit: Tensor | None = None,
    factor: Tensor | None = None,
    shift: Tensor | None = None,
) -> Tensor:
    """``q`` with the gradient of ``w`` set to g B((w - shift) / unit) factor, as far as given."""
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    function = TransformedSurrogateGradient if transformed else SurrogateGradient
    return function.apply(w, q, strength, unit, factor, shift, pair)
