"""A pair laid out along the weight axis: intervals, and what F and B do in them.

Every tolerance belongs to its interval, so that nothing far away decides, and F, B and w may be
multiplied by any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from proxbit.theory.curves import Array, Curve

REACH = 1e3  # how far out the axis is looked at
NEAREST = 1e-6  # the first point beside 0
ROUNDINGS = 32  # that a value may have lost
DOUBLE = float(np.finfo(np.float64).eps)

Bools = NDArray[np.bool_]
Segment: TypeAlias = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Axis:
    """The intervals of an axis, in order; a jump of F is an interval without width.

    Attributes:
        left: Left ends of the intervals.
        right: Right ends; equal to ``left`` at a knot.
        start: F at the left end of each interval (the limit from inside).
        rise: By how much F rises over each interval.
        size: By how much F moves at least in it, back and forth.
        slope: Mean of B over each interval; B at the point itself for a knot.
        low: Smallest B seen in each interval.
        high: Largest B seen in each interval.
        noise: What rounding may have done to the rise.
        bent: Whether F still bends although there were no halvings left.
        steep: The same of B: whether it still varies threefold.
        leap: By how much P jumps, where the pair says so; 0 elsewhere.
        forward: F itself.
        backward: B itself.
    """

    left: Array
    right: Array
    start: Array
    rise: Array
    size: Array
    slope: Array
    low: Array
    high: Array
    noise: Array
    bent: Bools
    steep: Bools
    leap: Array
    forward: Curve
    backward: Curve

    @property
    def width(self) -> Array:
        """Widths of the intervals."""
        return self.right - self.left

    @property
    def middle(self) -> Array:
        """Centres of the intervals."""
        return (self.left + self.right) / 2

    @cached_property
    def jump(self) -> Bools:
        """Which intervals are knots, without width."""
        return self.left == self.right

    @cached_property
    def still(self) -> Bools:
        """Where F does not move, as far as float64 shows."""
        return self.size <= self.noise

    @cached_property
    def most(self) -> Array:
        """The largest |B| seen in each interval."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @cached_property
    def nil(self) -> Bools:
        """Where B is zero; a whole stretch is, if beside the next one B is mere rounding."""
        count = int(self.segment[-1]) + 1
        largest = np.zeros(count + 2)
        solid = ~self.jump
        np.maximum.at(largest, self.segment[solid] + 1, self.most[solid])
        beside = np.maximum(largest[:-2], largest[2:])
        nothing = largest[1:-1] <= ROUNDINGS * DOUBLE * beside
        return solid & ((self.most == 0) | nothing[self.segment])

    @property
    def leaps(self) -> Bools:
        """Where P is known to jump up: F may do anything there, because T is free in the gap."""
        return self.leap > 0

    @cached_property
    def segment(self) -> NDArray[np.int64]:
        """The number of the stretch between two knots that an interval is in; knots end one."""
        return np.cumsum(self.jump)

    @cached_property
    def steepness(self) -> Array:
        """The slope of P in each interval: its own where F moves, else the larger one beside it.

        In its own stretch any moving interval counts, beyond a knot only one that clearly moves;
        infinite where there is none.
        """
        moving = ~self.still & ~self.jump & ~self.nil & (self.slope != 0)
        with np.errstate(divide="ignore", over="ignore"):
            own = np.abs(self.rise) / np.where(moving, np.abs(self.slope) * self.width, np.inf)
        clear = moving & (self.size > 1e3 * self.noise)
        if not clear.any():
            return np.where(moving, own, np.inf)
        sides = []
        for way in (slice(None), slice(None, None, -1)):
            here, segment = own[way], self.segment[way]
            same = _last_of(segment, moving[way], -1) == segment
            near = np.where(same, _last_of(here, moving[way], np.inf), np.inf)
            sides.append(np.minimum(near, _last_of(here, clear[way], 0.0))[way])
        return np.where(moving, own, np.maximum(*sides))

    @cached_property
    def flat(self) -> Bools:
        """Where P stands still: F does too, and would be seen to move if P went on as nearby."""
        with np.errstate(invalid="ignore"):
            expected = np.where(~self.nil, self.most * self.width * self.steepness, 0.0)
        return self.still & ~self.jump & ~self.leaps & (expected > 64 * self.noise)

    @cached_property
    def free(self) -> Bools:
        """Where F stands still and B is zero, from a break on: any P will do."""
        return self.still & ~self.jump & self.from_breaks(self.nil)

    @cached_property
    def tail(self) -> Bools:
        """Where F may move, but by less than float64 can show: the tail of a smooth sign."""
        return self.still & ~self.jump & ~self.flat & ~self.free

    def from_breaks(self, mask: Bools) -> Bools:
        """The runs of a mask that end at knots, at the axis's ends, or abruptly."""
        kept = np.zeros_like(mask)
        for first, last in runs(mask & ~self.jump):
            if all(self.abrupt(i) for i in (first - 1, last + 1)):
                kept[first : last + 1] = True
        return kept

    def abrupt(self, beside: int) -> bool:
        """Whether B ends abruptly at an interval: a knot, the end of an axis, no decay before."""
        if not 0 <= beside < len(self.left) or self.jump[beside]:
            return True
        return bool(self.most[beside] > 1e-3 * self.region[beside])

    @cached_property
    def region(self) -> Array:
        """The largest |B| of the region around each interval."""
        return region_of(self.middle, self.most)


def _last_of(values: NDArray[Any], mask: Bools, none: float) -> NDArray[Any]:
    """For each interval the value at the nearest interval of a mask, itself or before it."""
    index = np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))
    return np.where(index >= 0, values[index], none)


def runs(mask: Bools) -> list[tuple[int, int]]:
    """First and last index of every stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return [(int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def region_of(grid: Array, size: Array) -> Array:
    """The largest value of the region around each point, from an eighth of it to eight times it.

    In the tail of a smooth map values are nothing but rounding, and would seem to jump.
    """
    octave = np.floor(np.log2(np.maximum(np.abs(grid), NEAREST))).astype(int)
    side = np.where(grid < 0, 0, 1)
    first = octave.min() - 3
    largest = np.zeros((2, int(octave.max()) - first + 4))
    np.maximum.at(largest, (side, octave - first), size)
    around = [largest[:, 3 + k : largest.shape[1] - 3 + k] for k in range(-3, 4)]
    wide = np.max(around, axis=0)
    found: Array = wide[side, octave - first - 3]
    return found


def gap_of(knots: Array) -> Array:
    """How far from a knot a map is looked at, on either side."""
    return np.where(knots == 0, 1e-13, 1e-9 * np.abs(knots))


def free_segments(axis: Axis) -> tuple[Segment, ...]:
    """Where B = 0 and F stands still; infinite at the ends of the axis."""
    ends = [(axis.left[a], axis.right[b]) for a, b in _joined(axis)]
    low, high = axis.left[0], axis.right[-1]
    return tuple(
        (-np.inf if a <= low else float(a), np.inf if b >= high else float(b)) for a, b in ends
    )


def _joined(axis: Axis) -> list[tuple[int, int]]:
    """Runs of free intervals, across knots at which nothing happens."""
    quiet = axis.jump & (axis.rise == 0) & (axis.most == 0)
    return [(a, b) for a, b in runs(axis.free | quiet) if axis.free[a : b + 1].any()]


def describe(segments: Sequence[Segment]) -> str:
    """Segments in words: 'w > 0', '|w| > 1', '0 < w < 1'."""
    ends = [(float(a), float(b)) for a, b in segments]
    if len(ends) == 2 and np.allclose(ends[0], (-ends[1][1], -ends[1][0]), rtol=1e-3):
        return _one(ends[1]).replace("w", "|w|")
    return " and ".join(_one(segment) for segment in ends)


def _one(segment: Segment) -> str:
    low, high = segment
    if low <= -REACH and high >= REACH:
        return "all w"
    if high >= REACH:
        return f"w > {low:.3g}"
    if low <= -REACH:
        return f"w < {high:.3g}"
    return f"{low:.3g} < w < {high:.3g}"
