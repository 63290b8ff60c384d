"""Stretches of the weight axis: where P is free, and how to say where something is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from proxbit.theory.axis import REACH, Axis, runs

Segment: TypeAlias = tuple[float, float]


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
