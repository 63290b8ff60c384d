r"""Elementwise maps of a weight ``w`` and a strength ``s``: the formulas behind every pair.

Pure functions of tensors. The strength is a 0-d tensor (or a float); shape and dtype of ``w`` are
kept. ``z`` is the strength times the weight, as in the papers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

Strength: TypeAlias = Tensor | float

SQRT2 = math.sqrt(2.0)

# Where the sign-Swish peaks: the root of u tanh(u) = 1, which is also the value it takes there.
SWISH_PEAK = 1.1996786402577337


def identity(w: Tensor, s: Strength = 1.0) -> Tensor:
    """The weight itself: full precision."""
    return w


def one(w: Tensor, s: Strength = 1.0) -> Tensor:
    """The constant 1: the backward of every straight-through method."""
    return torch.ones_like(w)


def sign(w: Tensor, s: Strength = 1.0) -> Tensor:
    """The sign bit as +1 or -1: +0.0 gives +1, -0.0 gives -1; nan stays nan. No gradient passes.

    GELU and Hardswish end in -0.0 or just below 0, as the kernel and the memory format have it; the
    sign bit is the same.

    >>> sign(torch.tensor([-2.0, -0.0, 0.0, 3.0]))
    tensor([-1., -1.,  1.,  1.])
    """
    w = w.detach()
    # At least 2 in size, and infinite at both zeros: ten times faster on a CPU than torch.where.
    return functional.hardtanh_(w.reciprocal().add_(w))


def inside(w: Tensor, s: Strength = 1.0) -> Tensor:
    """Indicator of the closed interval [-1, 1]: the backward of BNN (Hubara et al., 2016).

    The open interval would kill for good every latent weight that was clipped to +-1.
    """
    return sign(1 - w.abs()).clamp_min(0)  # no comparison: those are slow on a CPU


def hard_tanh(w: Tensor, s: Strength = 1.0) -> Tensor:
    """The weight clamped to [-1, 1]: the transform behind BNN."""
    return w.clamp(-1, 1)


def triangle(w: Tensor, s: Strength = 1.0) -> Tensor:
    """The tent ``max(2 - 2|w|, 0)``: the backward of Bi-Real (Liu et al., 2018)."""
    return (2 - 2 * w.abs()).clamp_min(0)


def sign_swish(w: Tensor, s: Strength) -> Tensor:
    """Smooth sign that overshoots: ``tanh z + z tanh' z`` with ``z = s w / 2``.

    Reaches 1.1997 at z = 1.1997 before settling at 1. Darabi et al., 2018.

    >>> sign_swish(torch.tensor([-1.0, 0.0, 1.0]), 30.0)
    tensor([-1.,  0.,  1.])
    """
    z = _stretch(w, s / 2)
    t = z.tanh()  # of a sigmoid p, 2 p - 1 would cancel near 0
    return torch.ops.aten.tanh_backward(z, t).add_(t).to(w.dtype)


def sign_swish_slope(w: Tensor, s: Strength) -> Tensor:
    """Derivative of :func:`sign_swish`: ``s tanh' z (1 - z tanh z)``.

    Negative beyond the peak, ``|w| > 2.3994 / s``, down to -0.0738 s.
    """
    z = _stretch(w, s)
    p = z.sigmoid()
    return (_bell(torch.addcmul(_constant(1, z), z, p - 0.5, value=-1), p) * (4 * s)).to(w.dtype)


def _wide(w: Tensor) -> Tensor:
    """At least single precision: in half, s w may overflow."""
    return w.float() if w.dtype in (torch.float16, torch.bfloat16) else w


def _stretch(w: Tensor, s: Strength) -> Tensor:
    """The product s w, finite even where w is not: its limits, where inf * 0 would be nan."""
    w = _wide(w)
    far = torch.finfo(w.dtype).max ** 0.5
    return w.clamp(-far, far) * s


# A smooth map is a handful of passes over the weight, and on a CPU each pass costs as much as its
# arithmetic: hence fused operators. Slopes are made of p, the sigmoid of z, with tanh'(z / 2) =
# 4 p (1 - p): it costs a third of a tanh.


def _bell(a: Tensor, p: Tensor) -> Tensor:
    """The product a p (1 - p) in one pass."""
    return torch.ops.aten.sigmoid_backward(a, p)


def _constant(value: float, like: Tensor) -> Tensor:
    """A 0-d tensor on the device and in the dtype of another one."""
    return torch.full((), value, dtype=like.dtype, device=like.device)


def peaked_swish(w: Tensor, s: Strength) -> Tensor:
    """Sign-Swish stopped at its peak and divided by it: monotone, exactly +-1 beyond 2.3994 / s."""
    return sign_swish(_clamp_to_peak(w, s), s) / SWISH_PEAK


def peaked_swish_slope(w: Tensor, s: Strength) -> Tensor:
    """Derivative of :func:`peaked_swish`: continuous, never negative, zero beyond the peak."""
    return sign_swish_slope(_clamp_to_peak(w, s), s).clamp_min(0) / SWISH_PEAK


def _clamp_to_peak(w: Tensor, s: Strength) -> Tensor:
    peak = torch.as_tensor(2 * SWISH_PEAK / s, dtype=w.dtype, device=w.device)
    return torch.minimum(torch.maximum(w, -peak), peak)


def poly(w: Tensor, s: Strength) -> Tensor:
    """Two parabolas that saturate: ``k (√2 z - z|z| / 2)`` with ``z = s w``.

    z is clamped to ±√2, and ``k = max(1 / s, 1)``.
    Ends at +-k, so it is a sign only from s = 1 on. Lin et al. (R-BNN), 2020.

    >>> poly(torch.tensor([-9.0, 0.5, 9.0]), SQRT2)
    tensor([-1.0000,  0.7500,  1.0000])
    """
    k, s = _steepening(s)
    z = (_wide(w) * s).clamp(-SQRT2, SQRT2)
    return (z * (SQRT2 - z.abs() / 2) * k).to(w.dtype)


def poly_slope(w: Tensor, s: Strength) -> Tensor:
    """Derivative of :func:`poly`: ``max(k (√2 s - s² |w|), 0)``."""
    k, s = _steepening(s)
    return ((SQRT2 - (_wide(w) * s).abs()).clamp_min(0) * (k * s)).to(w.dtype)


def soft_sign(w: Tensor, s: Strength) -> Tensor:
    """The tanh of EDE: ``k tanh(s w)`` with ``k = max(1 / s, 1)``. Qin et al., 2020."""
    k, s = _steepening(s)
    return ((_wide(w) * s).tanh() * k).to(w.dtype)


def soft_sign_slope(w: Tensor, s: Strength) -> Tensor:
    """Derivative of :func:`soft_sign`: ``k s (1 - tanh²(s w))``."""
    k, s = _steepening(s)
    p = (_wide(w) * (2 * s)).sigmoid()
    return (torch.addcmul(p, p, p, value=-1) * (4 * k * s)).to(w.dtype)


def _steepening(s: Strength) -> tuple[Strength, Strength]:
    """The k = max(1/s, 1), which keeps the slope at 0 of order one for small s, and s itself.

    Below 1e-4 the maps are linear on all weights that occur: s stops there, so that 0 is allowed.
    """
    if isinstance(s, Tensor):
        s = s.clamp_min(1e-4)
        return (1 / s).clamp_min(1), s
    s = max(s, 1e-4)
    return max(1 / s, 1.0), s


def at_strength(
    f: Callable[[Tensor, Strength], Tensor], fixed: float, w: Tensor, s: Strength
) -> Tensor:
    """A map held at one strength, whatever strength it is given."""
    return f(w, fixed)
