"""From an admitted pair back to what it optimizes: the prox P, the transform T, the regularizer r.

The pair's update is ProxConnect on  loss(T(w)) + r(w).  P follows from dP = dF / B up to a constant
(here P is centred on 0), T from F = T o P, and r from  w = z + mu r'(z)  at z = P(w).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from proxbit.core.pairs import Pair
from proxbit.theory.axis import Axis, Segment, free_segments, gap_of, runs
from proxbit.theory.curves import Array
from proxbit.theory.layout import lay_out
from proxbit.theory.verdict import check


class Refused(ValueError):
    """The pair is refused by Corollary 1: there is nothing to recover."""


@dataclass(frozen=True, eq=False)
class Recovered:
    """P, T and r of an admitted pair, as functions of numbers or arrays.

    Attributes:
        pair: The pair.
        strength: Its strength.
        smoothing: The mu of the prox: P = argmin_z (w - z)^2 / (2 mu) + r(z).
        free: Segments where B = 0 and P was chosen: it goes on with the slope it had, or with
            1 / mu where it stood still.
        axis: The pair along the weight axis.
    """

    pair: Pair
    strength: float
    smoothing: float
    free: tuple[Segment, ...]
    axis: Axis

    @cached_property
    def _p(self) -> tuple[Array, Array]:
        """P at the left and at the right end of every interval."""
        steps = _steps(self.axis, self.smoothing)
        right = np.cumsum(steps)
        left = right - steps
        at_zero = np.flatnonzero((self.axis.left <= 0) & (self.axis.right >= 0))
        jump = at_zero[self.axis.jump[at_zero]]
        if len(jump):
            centre = (left[jump[0]] + right[jump[-1]]) / 2
        else:
            centre = np.interp(0.0, self.axis.left[at_zero], left[at_zero])
        return left - centre, right - centre

    @property
    def domain(self) -> Segment:
        """The hull of P's range: beyond it r is infinite."""
        left, right = self._p
        rises = right > left
        low = -np.inf if rises[0] else float(left[0])
        return low, np.inf if rises[-1] else float(right[-1])

    @property
    def gaps(self) -> tuple[Segment, ...]:
        """Open intervals that P jumps over."""
        left, right = self._p
        over = self.axis.jump & (right - left > 1e-6)
        return tuple(zip(left[over].tolist(), right[over].tolist(), strict=True))

    def prox(self, w: ArrayLike) -> Array:
        """P(w); at a jump the upper value, since sign(0) = +1."""
        solid = ~self.axis.jump
        ends = (each[solid] for each in (self.axis.left, self.axis.right, *self._p))
        return _piecewise(np.asarray(w, dtype=np.float64), *ends)

    def potential(self, w: ArrayLike) -> tuple[Array, Array]:
        """P(w) and R(P(w)), where R(z) = mu r(z) + z^2 / 2 up to a constant.

        R is what P minimizes, P(w) = argmin R(z) - z w: so R(P(w)) is w P(w) less P's integral.
        """
        left, low, slope, before = self._lines
        w = np.asarray(w, dtype=np.float64)
        i = np.clip(np.searchsorted(left, w, side="right") - 1, 0, len(left) - 1)
        t = w - left[i]
        z = low[i] + t * slope[i]
        return z, w * z - before[i] - t * (low[i] + z) / 2

    @cached_property
    def _lines(self) -> tuple[Array, Array, Array, Array]:
        """Of every interval: its left end, P there, the slope of P, the integral of P from 0 on."""
        solid = ~self.axis.jump
        left, right = self.axis.left[solid], self.axis.right[solid]
        low, high = (p[solid] for p in self._p)
        area = (right - left) * (low + high) / 2
        middle = int(np.searchsorted(left, 0.0))
        # Outwards from 0: summed from one end, the first digits would be those of far intervals.
        down, up = np.cumsum(area[:middle][::-1])[::-1], np.cumsum(area[middle:])
        before = np.concatenate([-down, [0.0], up[:-1]])
        return left, low, (high - low) / (right - left), before

    def inverse(self, z: ArrayLike) -> Array:
        """A weight that P sends to z, or that it jumps over z at."""
        left, right = self._p
        moving = right > left
        ends = (each[moving] for each in (left, right, self.axis.left, self.axis.right))
        return _piecewise(np.asarray(z, dtype=np.float64), *ends)

    def transform(self, z: ArrayLike) -> Array:
        """T(z), with F = T o P; across a gap of P a cubic that arrives with the slopes of B."""
        left, right = self._p
        f = self.axis.forward
        z = np.asarray(z, dtype=np.float64)
        inside = np.clip(z, left[0], right[-1])
        value = f(self.inverse(inside).ravel()).reshape(z.shape)
        for i in np.flatnonzero(self.axis.jump & (right - left > 1e-6)):
            t = (inside - left[i]) / (right[i] - left[i])
            across = self._cubic(int(i), right[i] - left[i], np.clip(t, 0, 1))
            value = np.where((t >= 0) & (t <= 1), across, value)
        return value

    def _cubic(self, i: int, gap: float, t: Array) -> Array:
        """From F before a jump to F behind it, with B's slopes at both ends; t runs from 0 to 1."""
        a, place = self.axis, self.axis.left[i : i + 1]
        before, behind = (gap * a.backward(place + side * gap_of(place)) for side in (-1, 1))
        start, end = a.start[i], a.start[i] + a.rise[i]
        rise = start + t * t * (3 - 2 * t) * (end - start)
        return rise + t * (1 - t) * (before * (1 - t) - behind * t)

    def regularizer(self, z: ArrayLike, gaps: str = "lowest") -> Array:
        """r(z) with r = 0 where P sends 0, infinite outside of the domain.

        In a gap of P any r above a parabola gives the same P. ``gaps="lowest"`` takes the parabola
        itself, (1 - z^2) / (2 mu) for BNN; ``gaps="infinite"`` the indicator, as for BC.
        """
        z = np.asarray(z, dtype=np.float64)
        low, high = self.domain
        origin = self._integral(np.asarray(self.prox(0.0)))
        left, right = self._p
        value = self._integral(np.clip(z, left[0], right[-1])) - origin
        value = np.where((z < low - 1e-6) | (z > high + 1e-6), np.inf, value)
        if gaps == "infinite":
            for a, b in self.gaps:
                value = np.where((z > a + 1e-9) & (z < b - 1e-9), np.inf, value)
        elif gaps != "lowest":
            raise ValueError(f"gaps is 'lowest' or 'infinite', not {gaps!r}")
        return value

    def _integral(self, z: Array) -> Array:
        """(1 / mu) times the integral of P^-1(u) - u up to z: quadratic in every interval."""
        left, right = self._p
        moving = right > left
        a, p, q = self.axis, left[moving], right[moving]
        w_left, w_right = a.left[moving], a.right[moving]
        whole = (q - p) * ((w_left + w_right) / 2 - (p + q) / 2)
        before = np.concatenate([[0.0], np.cumsum(whole)])
        i = np.clip(np.searchsorted(q, z, side="left"), 0, len(p) - 1)
        t = z - p[i]
        slope = (w_right[i] - w_left[i]) / (q[i] - p[i])
        part = t * (w_left[i] - p[i]) + t * t / 2 * (slope - 1)
        return (before[i] + part) / self.smoothing

    def envelope(self, w: ArrayLike) -> Array:
        """The Moreau envelope of r: min over z of (w - z)^2 / (2 mu) + r(z)."""
        w = np.asarray(w, dtype=np.float64)
        z = self.prox(w)
        return (w - z) ** 2 / (2 * self.smoothing) + self.regularizer(z)

    @cached_property
    def residuals(self) -> dict[str, float]:
        """Largest error of F = T o P and of B = T' o P on the axis, off the knots."""
        a = self.axis
        solid = ~a.jump & (a.width > 1e-6)
        middle = a.middle[solid]
        forward = np.abs(self.transform(self.prox(middle)) - a.forward(middle)).max()
        left, right = self._p
        rising = solid & (right - left > 1e-12)
        slope = a.rise[rising] / (right - left)[rising]
        missed = np.abs(slope - a.backward(a.middle[rising]))
        backward = missed.max() if rising.any() else 0.0
        return {"F = T o P": float(forward), "B = T' o P": float(backward)}


def recover(pair: Pair, strength: float = 1.0, smoothing: float = 1.0) -> Recovered:
    """Find P, T and r of an admitted pair; raises :class:`Refused` with the reasons for another."""
    if not (np.isfinite(smoothing) and smoothing > 0):
        raise ValueError(f"smoothing is a positive number, not {smoothing}")
    verdict = check(pair, strength)
    if not verdict.admitted:
        raise Refused(f"{pair.name} has no objective to recover, it is {verdict}")
    axis = lay_out(pair, strength)
    return Recovered(pair, float(strength), float(smoothing), free_segments(axis), axis)


def _steps(axis: Axis, smoothing: float) -> Array:
    """By how much P rises over every interval."""
    solid = _measurable(axis) & ~axis.leaps
    steps = np.where(solid, axis.rise / np.where(solid, axis.slope, 1.0), axis.leap.clip(min=0.0))
    unmeasured = runs(~axis.flat & ~_measurable(axis) & ~axis.jump)
    for first, last in sorted(unmeasured, key=lambda run: abs(axis.middle[run[0]])):
        intervals = slice(first, last + 1)
        slope = _slope_beside(axis, steps, first, last) or 1 / smoothing
        steps[intervals] = slope * axis.width[intervals]
    return steps


def _measurable(axis: Axis) -> Any:
    """Where F moves by so many roundings that the slope of P can be told; at a jump, if it does."""
    return np.where(axis.jump, axis.rise != 0, axis.size > 1e3 * axis.noise)


def _slope_beside(axis: Axis, steps: Array, first: int, last: int) -> float:
    """The slope with which P arrives at a free stretch from the side of 0; 0 if it stands still.

    The median over a few intervals: the nearest may straddle the point where B reaches 0.
    """
    from_left = axis.left[first] >= 0
    near = slice(max(first - 7, 0), first) if from_left else slice(last + 1, last + 8)
    wide = axis.width[near] > 0
    slopes = steps[near][wide] / axis.width[near][wide]
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    return slope if slope > 1e-9 else 0.0


def _piecewise(x: Array, left: Array, right: Array, low: Array, high: Array) -> Any:
    """The line through (left, low) and (right, high) of the interval around x; ends extended."""
    i = np.clip(np.searchsorted(left, x, side="right") - 1, 0, len(left) - 1)
    return low[i] + (x - left[i]) * (high[i] - low[i]) / (right[i] - left[i])
