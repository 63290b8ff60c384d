"""Forward-backward pairs: what the network sees, and what multiplies its gradient.

Two functions of ``(w, strength)`` make a pair, yours as much as ours::

    steep = Pair(lambda w, s: torch.tanh(s * w), lambda w, s: s / torch.cosh(s * w) ** 2)

Use ``def`` instead of ``lambda`` if the model is to be pickled: that is Python's rule, not ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from proxbit.core import maps, prox
from proxbit.core.maps import Strength

Map: TypeAlias = Callable[[Tensor, Strength], Tensor]
Knots: TypeAlias = Callable[[float], tuple[float, ...]]


@dataclass(frozen=True)
class Pair:
    """A forward quantizer F with a backward quantizer B, both elementwise maps of (w, strength).

    Attributes:
        forward: F, what the network sees.
        backward: B, the multiplier of the gradient.
        name: How reports call it.
        knots: From a strength to the points where F jumps or B breaks; None if not declared.
        limit: What F tends to as the strength grows; None if it claims nothing.
        hard: Whether F is exactly +-1 at every strength.
        proximal: P, if the pair was built from one: F and B do not show how far P jumps.
    """

    forward: Map
    backward: Map
    name: str = "custom"
    knots: Knots | None = None
    limit: Callable[[Tensor], Tensor] | None = None
    hard: bool = False
    proximal: Map | None = None


def no_knots(strength: float) -> tuple[float, ...]:
    """F and B are continuous."""
    return ()


def knot_at_zero(strength: float) -> tuple[float, ...]:
    """F jumps at 0."""
    return (0.0,)


def knots_of_bnn(strength: float) -> tuple[float, ...]:
    """F jumps at 0, B breaks at +-1."""
    return (-1.0, 0.0, 1.0)


_hard_sign = partial(Pair, forward=maps.sign, knots=knot_at_zero, limit=maps.sign, hard=True)
_smooth = partial(Pair, knots=no_knots, limit=maps.sign)

full_precision = Pair(maps.identity, maps.one, "FP", knots=no_knots)
binary_connect = _hard_sign(backward=maps.one, name="BC")
bnn = _hard_sign(backward=maps.inside, name="BNN", knots=knots_of_bnn)
bnn_plus = _hard_sign(backward=maps.sign_swish_slope, name="BNN+")
bnn_plus_plus = _smooth(forward=maps.sign_swish, backward=maps.sign_swish_slope, name="BNN++")
monotone_bnn_plus_plus = _smooth(
    forward=maps.peaked_swish, backward=maps.peaked_swish_slope, name="monotone BNN++"
)
bi_real = _hard_sign(backward=maps.triangle, name="Bi-Real")
r_bnn = _hard_sign(backward=maps.poly_slope, name="R-BNN")
poly_plus = _smooth(forward=maps.poly, backward=maps.poly_slope, name="Poly+")
ede = _hard_sign(backward=maps.soft_sign_slope, name="EDE")
ede_plus = _smooth(forward=maps.soft_sign, backward=maps.soft_sign_slope, name="EDE+")


def prox_connect(varrho: float | None = 0.0) -> Pair:
    """PC: the linear quantizer forward, identity backward. ``varrho=None`` ties it to rho.

    The gradient of L is never taken: B is 1 even where L is flat.
    """
    forward = partial(prox.linear_quantizer, varrho=varrho)
    return Pair(forward, maps.one, "PC", knots=_knots_of_prox_connect, limit=maps.sign)


def _knots_of_prox_connect(strength: float) -> tuple[float, ...]:
    room = max(1.0 - strength, 0.0)
    return (-room, 0.0, room) if room else (0.0,)


def swish_of_prox(start: float = 0.5, end: float = 0.5) -> Pair:
    """BNN++ behind ProxConnect's prox: F = T o L and B = T' o L, with rho the strength.

    T is the sign-Swish divided by its value at 1, so that F is exactly +-1 where L is: from rho = 1
    on F is the sign and B a constant. T's own strength goes from ``start`` to ``end`` as rho goes
    to 1; it stays below 2.3994, where B would be negative at +-1.
    """
    if not (0 < start < 2 * maps.SWISH_PEAK and 0 < end < 2 * maps.SWISH_PEAK):
        raise ValueError(
            f"start and end are strengths of a sign-Swish that rises up to 1: "
            f"between 0 and 2.3994, not {start:g} and {end:g}"
        )
    return Pair(
        partial(prox_swish, start, end), partial(prox_swish_slope, start, end), "BNN++ prox",
        knots=_knots_of_prox_connect, limit=maps.sign, proximal=prox.linear_quantizer,
    )  # fmt: skip


def prox_swish(start: float, end: float, w: Tensor, s: Strength) -> Tensor:
    """Compute T o L: see :func:`swish_of_prox`."""
    z, mu, top = _behind_prox(start, end, w, s)
    return torch.where(z.abs() == 1, z, maps.sign_swish(z, mu) / top)


def prox_swish_slope(start: float, end: float, w: Tensor, s: Strength) -> Tensor:
    """Compute T' o L: see :func:`swish_of_prox`."""
    z, mu, top = _behind_prox(start, end, w, s)
    return maps.sign_swish_slope(z, mu) / top


def _behind_prox(
    start: float, end: float, w: Tensor, s: Strength
) -> tuple[Tensor, Strength, Strength]:
    """L(w), the sign-Swish's own strength, and its value at 1."""
    z = prox.linear_quantizer(w, s)
    if start == end:
        u = start / 2
        return z, start, math.tanh(u) + u / math.cosh(u) ** 2
    mu = torch.as_tensor(s, dtype=w.dtype, device=w.device).clamp(max=1) * (end - start) + start
    return z, mu, maps.sign_swish(torch.ones_like(mu), mu)


# Ways to build a pair that the theory admits -----------------------------------------------------


def straight_through(proximal: Map, name: str = "straight-through") -> Pair:
    """F = P and B = 1 for a proximal map P: ProxConnect with any regularizer."""
    return Pair(proximal, maps.one, name)


def from_transform(transform: Map, slope: Map, proximal: Map, name: str = "T o P") -> Pair:
    """F = T o P and B = T' o P: the decomposition that Corollary 1 asks for, built forwards."""
    forward, backward = partial(_compose, transform, proximal), partial(_compose, slope, proximal)
    return Pair(forward, backward, name, proximal=proximal)


def from_derivative(forward: Map, name: str = "derivative") -> Pair:
    """Pair a differentiable F with its derivative, by automatic differentiation (Corollary 2)."""
    return Pair(forward, partial(_derivative, forward), name, knots=no_knots)


def shifted(pair: Pair, by: float) -> Pair:
    """The same pair around another centre: F(w - by) with B(w - by)."""
    return replace(_placed(pair, by, 1.0), name=f"{pair.name} shifted by {by:g}")


def scaled(pair: Pair, by: float) -> Pair:
    """The same pair for the set {-by, +by}: by F(w / by) with B(w / by)."""
    return replace(_placed(pair, 0.0, by), name=f"{pair.name} scaled by {by:g}")


def _placed(pair: Pair, centre: float, size: float) -> Pair:
    """The same pair around another centre, and for the set {-size, +size}."""
    return replace(
        pair,
        forward=partial(_at, pair.forward, centre, size, size),
        backward=partial(_at, pair.backward, centre, size, 1.0),
        knots=pair.knots and partial(_knots_at, pair.knots, centre, size),
        limit=pair.limit and partial(_limit_at, pair.limit, centre, size),
        hard=pair.hard and size == 1,
        proximal=pair.proximal and partial(_at, pair.proximal, centre, size, size),
    )


def sharpened(pair: Pair) -> Pair:
    """The sign of F with the same B: what trains while the network sees signs."""
    if pair.hard:
        return pair
    return Pair(
        partial(_sign_of, pair.forward), pair.backward, f"signs of {pair.name}", pair.knots,
        limit=maps.sign, hard=True,
    )  # fmt: skip


# Named functions, not lambdas: a model that holds a built pair must survive pickle.


def _compose(outer: Map, inner: Map, w: Tensor, s: Strength) -> Tensor:
    return outer(inner(w, s), s)


def _sign_of(f: Map, w: Tensor, s: Strength) -> Tensor:
    return maps.sign(f(w, s))


def _derivative(forward: Map, w: Tensor, s: Strength) -> Tensor:
    return torch.func.jvp(lambda x: forward(x, s), (w,), (torch.ones_like(w),))[1]


def _at(f: Map, centre: float, size: float, height: float, w: Tensor, s: Strength) -> Tensor:
    return f((w - centre) / size, s) * height


def _knots_at(knots: Knots, centre: float, size: float, s: float) -> tuple[float, ...]:
    return tuple(knot * size + centre for knot in knots(s))


def _limit_at(f: Callable[[Tensor], Tensor], centre: float, size: float, w: Tensor) -> Tensor:
    return f((w - centre) / size) * size
