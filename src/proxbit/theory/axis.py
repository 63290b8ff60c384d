"""A pair laid out along the weight axis: where it jumps, and how F moves against B in between.

Everything is float64, on a grid that is fine near 0 and reaches far out. Jumps of F and breaks of B
come from the pair's knots and from a search between grid points; zeros of B become grid points, so
that B has one sign in every cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from proxbit.pairs import Map, Pair

Array: TypeAlias = NDArray[np.float64]
Curve: TypeAlias = Callable[[Array], Array]

REACH = 1e3  # how far out the axis is looked at
SMALL = 1e-12  # no rise of F, relative to its whole rise; no B, relative to the largest
POINTS_AT_ONCE = 2048  # a call of a map costs about as much as these
NONE = 1e-100  # a B that is zero where F moves: the tail of a Gaussian is not


@dataclass(frozen=True, eq=False)
class Axis:
    """The cells of an axis, in order; a jump of F is a cell without width.

    Attributes:
        left: Left ends of the cells.
        right: Right ends; equal to ``left`` at a jump.
        start: F at the left end of each cell (the limit from inside).
        rise: By how much F rises over each cell.
        slope: Mean of B over each cell; B at the point itself for a jump.
        low: Smallest B seen in each cell.
        high: Largest B seen in each cell.
        leap: By how much P jumps, where the pair says so; 0 elsewhere.
    """

    left: Array
    right: Array
    start: Array
    rise: Array
    slope: Array
    low: Array
    high: Array
    leap: Array

    @property
    def width(self) -> Array:
        """Widths of the cells."""
        return self.right - self.left

    @property
    def jump(self) -> NDArray[np.bool_]:
        """Which cells are jumps."""
        return self.left == self.right

    @property
    def still(self) -> NDArray[np.bool_]:
        """Where F does not move."""
        return np.abs(self.rise) <= SMALL * self._whole

    @property
    def _whole(self) -> float:
        return max(1.0, float(np.abs(self.rise).sum()))

    @property
    def free(self) -> NDArray[np.bool_]:
        """Where F does not move and B is zero, up to rounding: any P will do."""
        return self.still & (self._size <= SMALL * self.largest)

    @property
    def dead(self) -> NDArray[np.bool_]:
        """Where F moves although B is zero: no P will do."""
        return ~self.still & ~self.leaps & (self._size <= NONE * self.largest)

    @property
    def leaps(self) -> NDArray[np.bool_]:
        """Where P is known to jump up: F may do anything, T is free in the gap."""
        return self.leap > 0

    @property
    def unresolved(self) -> NDArray[np.bool_]:
        """Where F may move, but by less than float64 shows: the tail of a smooth sign."""
        return self.still & (self._size * self.width <= 10 * SMALL * self._whole)

    @property
    def flat(self) -> NDArray[np.bool_]:
        """Where P stands still: F does, and B is not zero."""
        return self.still & ~self.free & ~self.leaps

    @property
    def _size(self) -> Array:
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def largest(self) -> float:
        """The largest |B|."""
        return max(abs(float(self.low.min())), abs(float(self.high.max())))


def lay_out(pair: Pair, strength: float) -> Axis:
    """Sample a pair at one strength; ValueError if it is not a pair of finite elementwise maps."""
    f = curve_of(pair.forward, strength, "forward")
    b = curve_of(pair.backward, strength, "backward")
    declared = np.asarray(pair.knots(strength) if pair.knots else (), dtype=np.float64)
    grid = _refined(b, _refined(f, _grid(declared)))
    found = np.concatenate([declared, _jumps(f, grid), _jumps(b, grid)])
    knots = _distinct(found)
    p = pair.proximal and curve_of(pair.proximal, strength, "proximal")
    return _cells(f, b, p, np.union1d(grid, _zeros(b, grid)), knots)


def curve_of(f: Map, strength: float, what: str) -> Curve:
    """A map at one strength as a function of arrays that refuses what a pair must not do."""
    s = torch.tensor(float(strength), dtype=torch.float64)

    def curve(x: Array) -> Array:
        w = torch.from_numpy(np.array(x))  # a copy: a map may work in place
        try:
            y = f(w, s)
        except Exception as error:
            raise ValueError(f"the {what} map raised {type(error).__name__}: {error}") from error
        if not isinstance(y, torch.Tensor) or y.shape != w.shape:
            got = tuple(y.shape) if isinstance(y, torch.Tensor) else type(y).__name__
            raise ValueError(f"the {what} map is not elementwise: {tuple(w.shape)} became {got}")
        y = y.detach().double()
        if not bool(torch.isfinite(y).all()):
            place = float(w[~torch.isfinite(y)][0])
            raise ValueError(f"the {what} map is not finite at w = {place:g}")
        return y.numpy()

    some = np.linspace(-3, 3, 13)[np.arange(13) * 5 % 13]  # in no order that a sort would keep
    apart = np.concatenate([curve(part) for part in np.split(some, [1, 3, 7])])
    if not np.allclose(curve(some), apart, rtol=1e-6, atol=1e-9):
        raise ValueError(f"the {what} map is not elementwise: a value depends on its neighbours")
    return curve


def _grid(knots: Array) -> Array:
    far = np.geomspace(1e-4, REACH, 1401)
    return np.unique(np.concatenate([-far, far, np.linspace(-4, 4, 3201), knots]))


def _refined(f: Curve, grid: Array) -> Array:
    """A grid on which f changes by no more than a fiftieth of its range from point to point."""
    for _ in range(20):
        y = f(grid)
        steep = np.abs(np.diff(y)) > np.ptp(y) / 50
        steep &= np.diff(grid) > 1e-4 * np.maximum(1e-3, np.abs(grid[1:]))
        if not steep.any():
            break
        grid = np.union1d(grid, ((grid[:-1] + grid[1:]) / 2)[steep])
    return grid


def _jumps(f: Curve, grid: Array) -> Array:
    """Places where f jumps: cut every cell, keep the part that stands out, to the last bit.

    A part stands out by its change against that of its neighbours, so that a steep rise hides no
    jump and a smooth f is done with soon.
    """
    y = f(grid)
    moving = np.flatnonzero(y[1:] != y[:-1])
    ends, values = np.stack([grid[moving], grid[moving + 1]]), np.stack([y[moving], y[moving + 1]])
    tolerance = 1e-7 * max(1.0, float(np.ptp(y)))
    bits = 0.0
    while ends.size and bits < 60:
        cuts = _cuts(ends)
        heights = np.empty_like(cuts)
        heights[0], heights[-1] = values
        heights[1:-1] = f(cuts[1:-1].ravel()).reshape(-1, cuts.shape[1])
        odd = _standing_out(heights[1:] - heights[:-1])
        keep = np.flatnonzero(odd.max(0) > tolerance)
        part = odd.argmax(0)[keep]
        ends = np.stack([cuts[part, keep], cuts[part + 1, keep]])
        values = np.stack([heights[part, keep], heights[part + 1, keep]])
        bits += np.log2(len(odd))
    return np.where(np.abs(ends[0]) < 1e-12, 0.0, ends.mean(0))


def _cuts(ends: Array) -> Array:
    """Points that cut every interval into equal parts: the more, the fewer intervals."""
    parts = min(max(POINTS_AT_ONCE // ends.shape[1], 4), 1024)
    t = np.arange(parts + 1)[:, None] / parts
    return ends[0] * (1 - t) + ends[1] * t


def _standing_out(change: Array) -> Array:
    """By how much the change over a part differs from the mean of the parts beside it.

    A part at an end has one neighbour: 3/4 of the difference makes it the oddest if it has the jump
    and not if the neighbour does.
    """
    odd = np.empty_like(change)
    odd[1:-1] = change[1:-1] - (change[:-2] + change[2:]) / 2
    odd[0], odd[-1] = 0.75 * (change[0] - change[1]), 0.75 * (change[-1] - change[-2])
    return np.abs(odd)


def _distinct(points: Array) -> Array:
    """Sorted, without the same point twice up to rounding."""
    points = np.sort(points)
    apart = np.diff(points, prepend=-np.inf) > 1e-9 * np.maximum(1.0, np.abs(points))
    return points[apart]


def _zeros(b: Curve, grid: Array) -> Array:
    """Where B becomes or leaves 0, or crosses it, between two grid points: cut and cut again."""
    signs = np.sign(b(grid))
    crossing = signs[1:] != signs[:-1]
    ends, sign = np.stack([grid[:-1], grid[1:]])[:, crossing], signs[:-1][crossing]
    bits = 0.0
    while ends.size and bits < 60:
        cuts = _cuts(ends)
        inner = np.sign(b(cuts[1:-1].ravel())).reshape(cuts[1:-1].shape)
        part, i = np.cumprod(inner == sign, axis=0).sum(0), np.arange(len(sign))
        ends = np.stack([cuts[part, i], cuts[part + 1, i]])
        bits += np.log2(len(cuts) - 1)
    return ends.mean(0)


def _cells(f: Curve, b: Curve, p: Curve | None, grid: Array, knots: Array) -> Axis:
    """Cells between grid points, with one without width at every knot."""
    edges = np.union1d(grid, knots)
    edges = edges[~_beside(edges, knots)]
    left, right = edges[:-1], edges[1:]
    step = 1e-9 * np.maximum(1.0, np.abs(edges))
    inner_left = left + np.where(np.isin(left, knots), step[:-1], 0)
    inner_right = right - np.where(np.isin(right, knots), step[1:], 0)
    middle = (left + right) / 2
    f_left, f_right = f(inner_left), f(inner_right)
    b_left, b_middle, b_right = b(inner_left), b(middle), b(inner_right)
    values = np.stack([b_left, b_middle, b_right])
    flat = {
        "left": left,
        "right": right,
        "start": f_left,
        "rise": f_right - f_left,
        "slope": (b_left + 4 * b_middle + b_right) / 6,
        "low": values.min(0),
        "high": values.max(0),
        "leap": np.zeros_like(left),
    }
    at, gap = b(knots), 1e-9 * np.maximum(1.0, np.abs(knots))
    jumps = {
        "left": knots, "right": knots, "start": f(knots - gap), "rise": _jump(f, knots, grid),
        "slope": at, "low": at, "high": at,
        "leap": np.zeros_like(knots) if p is None else _jump(p, knots, grid),
    }  # fmt: skip
    first_jump = np.concatenate([np.ones(len(left)), np.zeros(len(knots))])
    order = np.lexsort((first_jump, np.concatenate([left, knots])))
    return Axis(**{key: np.concatenate([flat[key], jumps[key]])[order] for key in flat})


def _jump(f: Curve, knots: Array, grid: Array) -> Array:
    """By how much f jumps at each knot.

    Twice the rise over a gap less the rise over two gaps: at a mere kink nothing is left.
    """
    gap = 1e-9 * np.maximum(1.0, np.abs(knots))
    near, far = (f(knots + step) - f(knots - step) for step in (gap, 2 * gap))
    rise = 2 * near - far
    return np.where(np.abs(rise) > 1e-9 * max(1.0, float(np.ptp(f(grid)))), rise, 0.0)


def _beside(edges: Array, knots: Array) -> NDArray[np.bool_]:
    """Grid points that lie so near a knot that a cell between them would be all rounding."""
    if not len(knots):
        return np.zeros(len(edges), dtype=bool)
    distance = np.abs(edges[:, None] - knots[None, :]).min(1)
    return (distance > 0) & (distance < 1e-7 * np.maximum(1.0, np.abs(edges)))
