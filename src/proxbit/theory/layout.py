"""From a pair to its axis: its breaks, and intervals between them in which little happens.

Everything is float64. The axis is cut at the pair's knots, at the breaks its maps can be heard to
have, at jumps that a search finds, and at zeros of B; in between, intervals are halved until F is
nearly straight and B nearly constant in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from proxbit.core.pairs import Pair
from proxbit.theory.axis import NEAREST, REACH, ROUNDINGS, Axis, Bools, gap_of, region_of
from proxbit.theory.curves import MOST, Array, Curve, changes, cuts

FAR = 100.0  # where a map may leave float64 without being wrong: exp does
DEPTH = 16  # halvings of an interval
BENT = 1e-5  # no bend is followed that moves F by less, relative to the first interval
STEEP = 5  # halvings for a B that varies: towards a zero it always does
FINEST = 1e-9  # no interval is made narrower
INTERVALS = 20_000  # that halving may add
CENTRES = 24  # places around which the axis is made finer
LISTENING = 900  # points at which the operators of a map are listened to
BROKEN = 1e-7  # the smallest jump that a search sees, relative to the values beside it


def lay_out(pair: Pair, strength: float, within: tuple[float, float] = (-REACH, REACH)) -> Axis:
    """Sample a pair at one strength; ValueError if it is not a pair of finite elementwise maps."""
    f, b = Curve(pair.forward, strength, "forward"), Curve(pair.backward, strength, "backward")
    p = None if pair.proximal is None else Curve(pair.proximal, strength, "proximal")
    curves = [f, b]  # what P does shows in them, or does not matter
    declared = np.asarray(pair.knots(strength) if pair.knots else (), dtype=np.float64)
    grid, knots = _breaks(curves, _grid(curves, declared, within), declared)
    edges = np.union1d(grid, _zeros(b, grid))
    return _intervals(f, b, p, edges[~_crowding(edges, knots)], knots)


def _grid(curves: Sequence[Curve], declared: Array, within: tuple[float, float]) -> Array:
    low, high = within
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise ValueError(f"within is a range of weights such as (-10, 10), not {within}")
    far = np.geomspace(NEAREST, REACH, 1000)
    grid = np.concatenate([-far, [0.0], far, np.linspace(-4, 4, 1601), declared, [low, high]])
    grid = np.unique(grid[(grid >= low) & (grid <= high)])
    for curve in curves:
        beyond = curve.overflows(grid) & (np.abs(grid) > FAR)
        inner = np.abs(grid[beyond]).min(initial=np.inf)
        grid = grid[np.abs(grid) < inner]
    return grid


def _breaks(curves: Sequence[Curve], grid: Array, declared: Array) -> tuple[Array, Array]:
    """A grid that is fine around everything the maps are heard to do, and their knots."""
    inside = (grid[0], grid[-1])
    some = grid[np.unique(np.linspace(0, len(grid) - 1, LISTENING).astype(int))]
    turns = [changes(curve.hear, some, bits=14) for curve in curves]
    places = _distinct(np.concatenate([declared, *turns]), 1e-4)[:CENTRES]
    near = _thinned(np.union1d(some, _around(places, 30, *inside)))
    heard = [changes(lambda x, c=curve: c.hear(x)[:1], near, 36) for curve in curves]  # type: ignore[misc]
    places = _distinct(np.concatenate([places, *heard]), 1e-4)[:CENTRES]
    grid = _thinned(np.union1d(grid, _around(places, 80, *inside)))
    searched = [_jumps(curve, grid) for curve in curves]
    knots = _distinct(np.concatenate([declared, *heard, *searched]), 1e-10)
    return grid, knots[(knots > inside[0]) & (knots < inside[1])]


def _around(centres: Array, count: int, low: float, high: float) -> Array:
    """Points that come nearer and nearer to each centre."""
    away = np.abs(centres[centres != 0])[:, None] * np.geomspace(1e-7, 0.5, count)
    away = np.maximum(away, FINEST)
    middle = centres[centres != 0][:, None]
    points = np.concatenate([(middle - away).ravel(), (middle + away).ravel(), middle.ravel()])
    return points[(points > low) & (points < high)]


def _thinned(grid: Array) -> Array:
    """Drop points that are nearly equal: an interval between them would be all rounding."""
    return grid[np.diff(grid, prepend=-np.inf) > np.maximum(1e-9 * np.abs(grid), FINEST / 2)]


def _distinct(points: Array, apart: float) -> Array:
    """Sorted by their distance to 0, without the same point twice up to rounding."""
    points = np.sort(np.where(np.abs(points) < FINEST, 0.0, points))
    kept = points[np.diff(points, prepend=-np.inf) > apart * np.abs(points)]
    return kept[np.argsort(np.abs(kept), kind="stable")]


def _jumps(f: Curve, grid: Array) -> Array:
    """Places where f jumps: cut every interval, keep the part that stands out, to the last bit.

    A part stands out by its change against that of its neighbours, so that a steep rise hides no
    jump and a smooth f is done with soon.
    """
    y = f(grid)
    moving = np.flatnonzero(y[1:] != y[:-1])
    ends, values = np.stack([grid[moving], grid[moving + 1]]), np.stack([y[moving], y[moving + 1]])
    least = BROKEN * region_of(grid, np.abs(y))[moving]
    bits = 0.0
    while ends.size and bits < 46:
        cut = cuts(ends)
        heights = np.empty_like(cut)
        heights[0], heights[-1] = values
        heights[1:-1] = f(cut[1:-1].ravel()).reshape(-1, cut.shape[1])
        odd = _standing_out(heights[1:] - heights[:-1])
        oddest = odd.max(0)
        keep = np.flatnonzero(oddest > least)
        keep = keep[np.argsort(-oddest[keep], kind="stable")][:MOST]
        part, least = odd.argmax(0)[keep], least[keep]
        ends = np.stack([cut[part, keep], cut[part + 1, keep]])
        values = np.stack([heights[part, keep], heights[part + 1, keep]])
        bits += np.log2(len(odd))
    return ends.mean(0)


def _standing_out(change: Array) -> Array:
    """By how much the change over a part differs from the mean of the parts beside it.

    A part at an end has one neighbour: 3/4 of the difference makes it the oddest if it has the jump
    and not if the neighbour does.
    """
    odd = np.empty_like(change)
    odd[1:-1] = change[1:-1] - (change[:-2] + change[2:]) / 2
    odd[0], odd[-1] = 0.75 * (change[0] - change[1]), 0.75 * (change[-1] - change[-2])
    return np.abs(odd)


def _zeros(b: Curve, grid: Array) -> Array:
    """Where B becomes or leaves 0, or crosses it, between two grid points."""
    return changes(lambda x: ([np.sign(b(x))],), grid)


def _crowding(edges: Array, knots: Array) -> Bools:
    """Grid points so near a knot that an interval between them would be all rounding."""
    if not len(knots):
        return np.zeros(len(edges), dtype=bool)
    ordered = np.sort(knots)
    i = np.searchsorted(ordered, edges)
    near = [ordered[np.clip(i + k, 0, len(ordered) - 1)] for k in (-1, 0)]
    distance = np.minimum(*(np.abs(edges - each) for each in near))
    return distance < np.maximum(1e-7 * np.abs(edges), FINEST / 1000)


@dataclass(frozen=True, eq=False)
class _Ends:
    """Intervals by the values at their ends; ``left`` and ``right`` lie just inside of a knot."""

    left: Array
    right: Array
    f_left: Array
    f_right: Array
    b_left: Array
    b_right: Array
    origin: Array  # by how much F moves in the interval that was halved first

    def taken(self, mask: Bools) -> _Ends:
        return _Ends(*(getattr(self, field.name)[mask] for field in fields(self)))

    def halves(self, middle: Array, f: Array, b: Array) -> _Ends:
        first = (self.left, middle, self.f_left, f, self.b_left, b, self.origin)
        second = (middle, self.right, f, self.f_right, b, self.b_right, self.origin)
        return _Ends(*(np.stack(pair, 1).ravel() for pair in zip(first, second, strict=True)))


def _intervals(f: Curve, b: Curve, p: Curve | None, grid: Array, knots: Array) -> Axis:
    """Intervals between grid points, halved where need be, and one without width at every knot."""
    knots = np.sort(knots)
    edges = np.union1d(grid, knots)
    step = np.where(np.isin(edges, knots), gap_of(edges), 0.0)
    left, right = edges[:-1] + step[:-1], edges[1:] - step[1:]
    ends = _Ends(left, right, f(left), f(right), b(left), b(right), np.zeros_like(left))
    done: list[dict[str, Any]] = []
    count = -len(left)  # of intervals that were halved
    for depth in range(DEPTH + 1):
        middle = (ends.left + ends.right) / 2
        f_middle, b_middle = f(middle), b(middle)
        intervals = _measured(ends, f_middle, b_middle, f.precision)
        if depth == 0:
            ends = replace(ends, origin=intervals["size"])
        rough = _spread(intervals["bent"] | (intervals["steep"] & (depth < STEEP)), ends)
        last = depth == DEPTH or count + 2 * int(rough.sum()) > INTERVALS
        keep = np.ones_like(rough) if last else ~rough
        done.append({name: values[keep] for name, values in intervals.items()})
        count += int(keep.sum())
        if keep.all():
            break
        ends = ends.taken(rough).halves(middle[rough], f_middle[rough], b_middle[rough])
    parts = [*done, _at_knots(f, b, p, knots)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort((columns["left"] != columns["right"], columns["left"]))
    columns = {name: values[order] for name, values in columns.items()}
    return Axis(**_snapped(columns, knots), forward=f, backward=b)


def _spread(rough: Bools, ends: _Ends) -> Bools:
    """Halve an interval next to a rough one too: it may look smooth by chance, on top of a wave."""
    beside = ends.right[:-1] == ends.left[1:]
    wide = rough.copy()
    wide[1:] |= rough[:-1] & beside
    wide[:-1] |= rough[1:] & beside
    return wide


def _measured(ends: _Ends, f: Array, b: Array, precision: float) -> dict[str, Any]:
    """The columns of intervals; those that are bent or steep are to be halved."""
    first, second = f - ends.f_left, ends.f_right - f
    size, rise = np.abs(first) + np.abs(second), ends.f_right - ends.f_left
    values = np.stack([ends.b_left, b, ends.b_right])
    low, high = values.min(0), values.max(0)
    height = np.max(np.abs([ends.f_left, f, ends.f_right]), axis=0)
    width = ends.right - ends.left
    reach = np.maximum(np.abs(ends.left), np.abs(ends.right))
    with np.errstate(over="ignore"):
        noise = precision * (ROUNDINGS * height + 8 * (reach / width) * size)
    sizes = np.abs(values)
    return {
        "left": ends.left, "right": ends.right, "start": ends.f_left, "rise": rise, "size": size,
        "slope": (ends.b_left + 4 * b + ends.b_right) / 6, "low": low, "high": high,
        "noise": noise, "leap": np.zeros_like(rise),
        "bent": (np.abs(first - second) > 0.6 * size)
        & (size > np.maximum(4 * noise, BENT * ends.origin)) & (width > FINEST),
        "steep": (sizes.max(0) > 3 * sizes.min(0)) & (size > noise),
    }  # fmt: skip


def _at_knots(f: Curve, b: Curve, p: Curve | None, knots: Array) -> dict[str, Any]:
    """The columns of the knots; B beside a knot counts as seen there."""
    gap, at = gap_of(knots), b(knots)
    beside = np.stack([b(knots - gap), at, b(knots + gap)])
    rise = _jump(f, knots)
    return {
        "left": knots, "right": knots, "start": f(knots - gap), "rise": rise, "size": np.abs(rise),
        "slope": at, "low": beside.min(0), "high": beside.max(0), "noise": np.zeros_like(rise),
        "leap": np.zeros_like(knots) if p is None else _jump(p, knots),
        "bent": np.zeros(len(knots), dtype=bool), "steep": np.zeros(len(knots), dtype=bool),
    }  # fmt: skip


def _jump(f: Curve, knots: Array) -> Array:
    """By how much f jumps at each knot: what remains on a closer look.

    Twice the rise over a gap less the rise over two gaps: at a mere kink nothing is left.
    """
    gap = gap_of(knots)
    low, high, rise = _beside_knots(f, knots, gap)
    nearer = _beside_knots(f, knots, gap / 8)[2]
    rounding = ROUNDINGS * f.precision * np.abs(knots) * np.abs(high - low) / gap
    least = 1e-9 * np.maximum(np.abs(low), np.abs(high)) + rounding
    return np.where((np.abs(rise) > least) & (np.abs(nearer) > 0.7 * np.abs(rise)), rise, 0.0)


def _beside_knots(f: Curve, knots: Array, gap: Array) -> tuple[Array, Array, Array]:
    low, high = f(knots - gap), f(knots + gap)
    return low, high, 2 * (high - low) - (f(knots + 2 * gap) - f(knots - 2 * gap))


def _snapped(columns: dict[str, Any], knots: Array) -> dict[str, Any]:
    """Let intervals that begin or end just beside a knot begin or end at it."""
    for name, way in (("left", 1.0), ("right", -1.0)):
        inner = knots + way * gap_of(knots)
        i = np.clip(np.searchsorted(inner, columns[name]), 0, max(len(knots) - 1, 0))
        if len(knots):
            columns[name] = np.where(inner[i] == columns[name], knots[i], columns[name])
    return columns
