"""Corollary 1 as a test: does a pair (F, B) come from a proximal map P and a transform T?

With dP = dF / B, the pair is admitted if and only if P never falls and both F and B are functions
of P: constant wherever P stands still. Where B = 0 and F does not move, P is free.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from proxbit.methods import PC, Method
from proxbit.pairs import Pair
from proxbit.theory.axis import REACH, Axis, lay_out

Segment = tuple[float, float]

VARIES = 1e-6  # a change of B that counts, relative to the largest |B|


@dataclass(frozen=True)
class Verdict:
    """What the theory says of a pair.

    Attributes:
        name: The pair's or method's name.
        admitted: Whether Corollary 1 admits it at every strength looked at.
        strengths: The strengths looked at.
        reasons: Why it is refused, in words and with the place; empty if admitted.
        free: Segments where B = 0 and F stands still, so that P is free (at the last strength).
        tolerance: The change of B that counted, relative to the largest |B|.
    """

    name: str
    admitted: bool
    strengths: tuple[float, ...]
    reasons: tuple[str, ...] = ()
    free: tuple[Segment, ...] = ()
    tolerance: float = VARIES

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON: an infinite end of a segment is None."""
        data = asdict(self)
        data["free"] = [[None if np.isinf(x) else x for x in ends] for ends in self.free]
        return data

    def __str__(self) -> str:
        """The verdict with its reasons."""
        if not self.admitted:
            return f"refused: {'; '.join(self.reasons)}"
        text = "admitted: P never falls, and F and B are functions of P"
        return text + (f" (free: {describe(self.free)})" if self.free else "")


def check(pair: Pair | Method, strength: float | tuple[float, float] | None = None) -> Verdict:
    """Test a pair at one strength, or at five from the low to the high end of a range.

    A method is tested over the range of its schedule, and its update rule counts too: PQ, rPC and
    PTB are not of the family whatever their pair. Raises ValueError on what is not a pair at all.
    """
    if not isinstance(pair, Pair | Method):
        raise TypeError(f"check takes a Pair or a Method, not {type(pair).__name__}")
    name, given = pair.name, pair
    if strength is not None:
        _strengths(strength)
    if isinstance(given, Method):
        if given.rule != PC:
            return Verdict(name, False, (), (_why_not_of_the_family(given),))
        strength = (
            strength
            if strength is not None
            else (float(given.schedule(0.0)), float(given.schedule(1.0)))
        )
        given = given.pair
    strengths = _strengths(1.0 if strength is None else strength)
    reasons: list[str] = []
    for value in strengths:
        axis = lay_out(given, value)
        found = _reasons(axis)
        if found and len(strengths) > 1:
            found = [f"at strength {value:g}: {found[0]}", *found[1:]]
        if found and not reasons:
            reasons = found
    return Verdict(name, not reasons, strengths, tuple(reasons), free_segments(axis))


def _strengths(strength: float | tuple[float, float]) -> tuple[float, ...]:
    low, high = strength if isinstance(strength, tuple) else (strength, strength)
    if not (np.isfinite(low) and np.isfinite(high) and low >= 0):
        raise ValueError(f"a strength is a finite number >= 0, not {low:g}:{high:g}")
    if low > high:
        raise ValueError(
            f"the strength range {low:g}:{high:g} is upside down: write {high:g}:{low:g}"
        )
    if low == high:
        return (float(low),)
    if low == 0:
        return tuple(float(x) for x in np.linspace(low, high, 5))
    return tuple(float(x) for x in np.geomspace(low, high, 5))


def _why_not_of_the_family(method: Method) -> str:
    rule = method.rule
    if rule.start_from == "latent":
        return "the gradient is taken at the latent weight: plain training, made binary afterwards"
    where = "latent" if rule.gradient_at == "latent" else "quantized"
    return (
        f"the step starts from the quantized weight, the gradient is taken at the {where} one: "
        f"a proximal-gradient step, not dual averaging"
    )


def _reasons(axis: Axis) -> list[str]:
    """Every way in which the pair breaks Corollary 1, the first place of each."""
    checks = (_moves_where_dead(axis), _falls(axis), _varies_where_flat(axis))
    return [reason for reason in checks if reason]


def _moves_where_dead(axis: Axis) -> str:
    bad = np.flatnonzero(axis.dead)
    if not len(bad):
        return ""
    i = bad[np.abs(axis.rise[bad]).argmax()]
    kind = "jumps" if axis.jump[i] else "moves"
    return f"F {kind} at w = {axis.left[i]:.3g} while B is 0 there, so P would be infinite"


def _falls(axis: Axis) -> str:
    bad = np.flatnonzero((axis.rise * axis.slope < 0) & ~axis.still & ~axis.dead & ~axis.leaps)
    if not len(bad):
        return ""
    stretches = runs(np.isin(np.arange(len(axis.left)), bad))
    where = describe([(axis.left[a], axis.right[b]) for a, b in stretches][:2])
    i = bad[0]
    f, b = ("rises", "negative") if axis.rise[i] > 0 else ("falls", "positive")
    return f"P falls on {where}: F {f} there while B is {b}"


def _varies_where_flat(axis: Axis) -> str:
    """P stands still where F does and B is not 0: then B must not change."""
    for first, last in reversed(runs(axis.flat)):
        low, high = axis.low[first : last + 1], axis.high[first : last + 1]
        if axis.unresolved[first : last + 1].all():
            continue
        if float(high.max() - low.min()) > VARIES * axis.largest:
            where = describe([(axis.left[first], _far_end(axis, last))])
            ends = _from_to(axis, first, last)
            return f"P is constant on {where} while B runs from {ends}, so B is not a function of P"
    return ""


def _far_end(axis: Axis, last: int) -> float:
    """Where a run ends: never, if what follows is only the rest of B's tail."""
    rest = slice(last + 1, None)
    tail = bool(axis.free[rest].all()) and last + 1 < len(axis.left) and _is_tail(axis, last + 1)
    return REACH if tail else float(axis.right[last])


def _from_to(axis: Axis, first: int, last: int) -> str:
    """The extreme values of B on a run, in the order in which they come."""
    low, high = axis.low[first : last + 1], axis.high[first : last + 1]
    ends = [(int(high.argmax()), float(high.max())), (int(low.argmin()), float(low.min()))]
    tiny = VARIES * axis.largest
    return " to ".join(f"{0.0 if abs(value) < tiny else value:.3g}" for _, value in sorted(ends))


def free_segments(axis: Axis) -> tuple[Segment, ...]:
    """Where B = 0 and F stands still, over more than a point; infinite at the ends of the axis.

    The tail of a smooth B, which only rounding makes zero, is not among them.
    """
    ends = [
        (axis.left[a], axis.right[b])
        for a, b in runs(axis.free)
        if axis.right[b] - axis.left[a] > 1e-6 and not _is_tail(axis, a if axis.left[a] >= 0 else b)
    ]
    return tuple(
        (-np.inf if low <= -REACH else float(low), np.inf if high >= REACH else float(high))
        for low, high in ends
    )


def _is_tail(axis: Axis, cell: int) -> bool:
    """Whether a free cell still holds a trace of B."""
    trace = max(abs(float(axis.low[cell])), abs(float(axis.high[cell])))
    return trace > 1e-14 * axis.largest


def runs(mask: np.ndarray[Any, np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """First and last index of every stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return [(int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def describe(segments: Any) -> str:
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
