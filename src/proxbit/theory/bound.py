"""The two sides of the convergence theorem of ProxConnect++, from latent weights and gradients.

A run is  w_t = P(w*_t)  and  w*_{t+1} = w*_t - eta_t g_t  with  g_t = T'(w_t) grad loss(T(w_t)).
R is the function with  P(w*) = argmin over w of R(w) - <w, w*>,  and

    Delta_t(w) = R(w) - R(w_{t+1}) - <w - w_{t+1}, w*_{t+1}>

is never negative, because w_{t+1} is that argmin. For every fixed w, adding up what one step does,

    sum of eta_t <w_t - w, g_t>  =  Delta_0(w) - Delta_t(w) + sum of Delta_t(w_t).

The paper prints <= and leaves T' out; both sums are equal. In its notation R is mu r + |w|^2 / 2,
and r(w_t) - r(w) stands beside the gradient. At a constant strength R stays the same function while
mu grows, so that r adds nothing to a step; see docs/theory.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from proxbit.theory.curves import Array

ROUNDINGS = 8  # that the sums and the gradient may cost; a step costs one of the latent weight
DOUBLE = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Point:
    """One place of a run, elementwise.

    Attributes:
        latent: w*.
        weight: w = P(w*).
        potential: R(w).
    """

    latent: Array
    weight: Array
    potential: Array


@dataclass(frozen=True)
class BoundTerms:
    """The terms that one step adds to both sides.

    Attributes:
        gap: <w_t - w, g_t>; for a convex loss(T) at least loss(T(w_t)) - loss(T(w)).
        moved: Delta_t(w_t), how far the step went.
        apart: Delta_t(w), how far the reference is after the step.
        rounding: What the precision of the weights may have cost.
    """

    gap: float
    moved: float
    apart: float
    rounding: float


@dataclass(frozen=True)
class TrailPoint:
    """Both sides after a step, from the first step on.

    Attributes:
        step: Its number, from 1.
        eta: Its step size.
        gap: <w_t - w, g_t>, before it is multiplied by eta.
        left: The sum of eta times gap.
        right: ``start`` - ``apart`` + ``path``.
        start: Delta_0(w), how far the reference was at the start.
        apart: Delta_t(w), how far it is now.
        moved: Delta_t(w_t), how far this step went.
        path: The sum of ``moved``.
        smoothing: 1 plus the sum of the step sizes, the mu of the next prox.
        rounding: By how much both sides may differ because numbers are rounded.
    """

    step: int
    eta: float
    gap: float
    left: float
    right: float
    start: float
    apart: float
    moved: float
    path: float
    smoothing: float
    rounding: float

    @property
    def holds(self) -> bool:
        """Whether both sides are equal up to rounding, and no distance is negative."""
        low = min(self.start, self.apart, self.moved)
        return abs(self.right - self.left) <= self.rounding and low >= -self.rounding

    @property
    def mean_gap(self) -> float:
        """The gap averaged with the step sizes; 0 as long as every step size was 0."""
        return self.left / max(self.smoothing - 1, TINY)

    @property
    def bound(self) -> float:
        """The bound on the mean gap: ``start`` + ``path`` over the sum of the step sizes."""
        return (self.start + self.path) / max(self.smoothing - 1, TINY)


def distance(to: Point, point: Point) -> float:
    """Delta(w), R's Bregman divergence: how far ``to`` is from an iterate; 0 at the iterate.

    Of a float weight, R(w) = w^2 / 2, it is half of the distance squared:

    >>> three, five = (Point(w, w, w**2 / 2) for w in np.array([[3.0], [5.0]]))
    >>> distance(five, three)
    2.0
    """
    inner = (to.weight - point.weight) * point.latent
    return float((to.potential - point.potential - inner).sum())


def terms(
    before: Point, after: Point, reference: Point, gradient: Array, eta: float, precision: float
) -> BoundTerms:
    """The terms of one step, from the places before and after it and g at the place before.

    Args:
        before: w*_t, w_t and R(w_t).
        after: The same after the step.
        reference: The w that the run is compared with.
        gradient: g_t = T'(w_t) grad loss(T(w_t)).
        eta: The step size.
        precision: The relative precision of the latent weights, such as 1.2e-7.
    """
    away = before.weight - reference.weight
    of_step = np.abs(away) * (np.abs(before.latent) + ROUNDINGS * eta * np.abs(gradient))
    of_sums = sum(np.abs(p.potential) + np.abs(p.weight * after.latent) for p in (reference, after))
    return BoundTerms(
        gap=float((away * gradient).sum()),
        moved=distance(before, after),
        apart=distance(reference, after),
        rounding=float(np.sum(precision * of_step + ROUNDINGS * DOUBLE * of_sums)),
    )


def added(parts: Iterable[BoundTerms]) -> BoundTerms:
    """The terms of a whole model from those of its weights."""
    columns = np.array([(part.gap, part.moved, part.apart, part.rounding) for part in parts])
    return BoundTerms(*columns.sum(0).tolist())


def first(start: float) -> TrailPoint:
    """The state before any step: only the distance to the reference is known."""
    return TrailPoint(0, 0.0, 0.0, 0.0, 0.0, start, start, 0.0, 0.0, 1.0, 0.0)


def advanced(last: TrailPoint, eta: float, step: BoundTerms) -> TrailPoint:
    """Both sides one step later."""
    left, path = last.left + eta * step.gap, last.path + step.moved
    return TrailPoint(
        step=last.step + 1,
        eta=eta,
        gap=step.gap,
        left=left,
        right=last.start - step.apart + path,
        start=last.start,
        apart=step.apart,
        moved=step.moved,
        path=path,
        smoothing=last.smoothing + eta,
        rounding=last.rounding + step.rounding,
    )
