"""Corollary 1 on an axis: certain violations, violations of its letter only, and doubtful places.

With dP = dF / B, a pair is admitted if and only if P is finite and never falls, and F and B are
functions of P: constant wherever P stands still. Where B = 0 and F does not move, P is free.

At a jump of P the corollary asks too much: T is free in the gap, so F and B may change there in
any way. What is refused for that alone has a decomposition all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from proxbit.theory.axis import REACH, Axis, Bools, describe, runs
from proxbit.theory.curves import Array, Curve, cuts

VARIES = 1e-6  # a change of B that counts, relative to the largest |B| of its stretch
CLEAR = 64  # roundings that a movement must exceed to prove something
ENOUGH = 1e4  # roundings that a movement must exceed to be measured
NEAR = 31  # intervals on either side of one with which it is compared
SHELLS = 90  # halvings towards a zero of B
DIVERGES, CONVERGES = -0.002, -0.1  # powers of two by which a shell adds less than the one before


@dataclass
class Findings:
    """The findings on an axis.

    Attributes:
        breaches: Places where no T and P can exist.
        letters: Places that the corollary's integral refuses, although T and P can exist.
        doubts: Places that float64, or so many points, cannot decide, and what would.
        gaps: Where P must jump for what the letter refuses.
    """

    breaches: list[str] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def by_the_letter(self, place: float, text: str) -> None:
        """Note a place that only the letter of the corollary refuses."""
        self.gaps.append(place)
        self.letters.append(text)


def judge(axis: Axis) -> Findings:
    """Every way in which a pair breaks Corollary 1, the first place of each."""
    found = Findings()
    for look in (_dead, _diverging, _falling, _varying, _jumping, _unresolved):
        look(axis, found)
    return found


def _dead(axis: Axis, found: Findings) -> None:
    """F must not move where B is zero."""
    fading = []
    for first, last in runs(axis.nil):
        if axis.still[first : last + 1].all():
            continue
        stretch = (float(axis.left[first]), float(axis.right[last]))
        if not _fades(axis, first, last):
            where = describe([stretch])
            found.breaches.append(f"F moves on {where} while B is 0 there, so P would be infinite")
            return
        fading.append(stretch)
    if fading:
        inner = 0.9 * min(min(abs(x) for x in stretch) for stretch in fading)
        found.doubts.append(
            f"B is below what float64 holds on {describe(fading[:2])} while F moves there: "
            f"ask for the weights before it, within=(-{inner:.3g}, {inner:.3g})"
        )


def _fades(axis: Axis, first: int, last: int) -> bool:
    """Whether B only seems to be zero from here to there: it fades away, and float64 ends."""
    ends = [(first - 1, -1), (last + 1, 1)]
    beside = [_beyond(axis, i, way) for i, way in ends if 0 <= i < len(axis.left)]
    below = any(0 < axis.most[i] < 1e-200 for i in beside)
    return below or not all(axis.abrupt(i) for i, _ in ends)


def _beyond(axis: Axis, i: int, way: int) -> int:
    """The first interval with a width from here on."""
    while 0 < i < len(axis.left) - 1 and axis.jump[i]:
        i += way
    return i


def _diverging(axis: Axis, found: Findings) -> None:
    """Where B has a zero while F moves, the sum of dF / B must converge."""
    places = _lowest(axis.backward, np.concatenate([_zeros(axis), axis.left[axis.jump]]))
    if not len(places):
        return
    worst = np.maximum(*(_power(axis, places, side) for side in (-1.0, 1.0)))
    for place, power in zip(places, worst, strict=True):
        if power > DIVERGES:
            found.breaches.append(
                f"B goes to 0 at w = {place:.3g} too fast for F, so P would be infinite there"
            )
            return
        if power > CONVERGES:
            found.doubts.append(
                f"whether P is finite at w = {place:.3g}, where B goes to 0, is too close to call"
            )


def _zeros(axis: Axis) -> Array:
    """Where B has a zero next to or inside an interval in which F moves."""
    steep = axis.steep & ~axis.still
    if not steep.any():
        return np.empty(0)
    ends = np.stack([axis.left[steep], axis.right[steep]])
    for _ in range(12):
        cut = cuts(ends)
        sizes = np.abs(axis.backward(cut.ravel())).reshape(cut.shape)
        low = sizes.argmin(0)
        columns = np.arange(cut.shape[1])
        ends = np.stack([cut[np.maximum(low - 1, 0), columns],
                         cut[np.minimum(low + 1, len(cut) - 1), columns]])  # fmt: skip
    places = cut[low, columns]
    return np.where(np.abs(places) < 1e-15, 0.0, places)


def _lowest(b: Curve, places: Array) -> Array:
    """The place where B is smallest in each cluster of nearly equal places."""
    places = np.unique(places)
    cluster = np.cumsum(np.diff(places, prepend=-np.inf) > 1e-6 * np.abs(places))
    order = np.lexsort((np.abs(b(places)), cluster))
    first = np.diff(cluster[order], prepend=-1) != 0
    return places[order][first]


def _power(axis: Axis, places: Array, side: float) -> Array:
    """By how many powers of two a shell around each place adds less than the next shell outwards.

    Minus infinity where F does not move enough to tell.
    """
    f, b = axis.forward, axis.backward
    away = _room(places, axis)[None, :] * 0.5 ** np.arange(SHELLS)[:, None]
    least = np.where(places == 0, 1e-60, ENOUGH * f.precision * np.abs(places))
    outer, middle = places + side * away, places + side * 0.75 * away
    height = f(outer.ravel()).reshape(outer.shape)
    slope = np.abs(b(middle.ravel()).reshape(outer.shape))[:-1]
    moved = np.abs(np.diff(height, axis=0))
    sure = (moved > ENOUGH * f.precision * np.abs(height[:-1])) & (slope > 0)
    sure &= away[1:] > least
    sure = np.logical_and.accumulate(sure | ~np.logical_or.accumulate(sure, axis=0), axis=0) & sure
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        added = np.log2(np.where(sure, moved / slope, np.nan))
    return np.array([_trend(column) for column in added.T])


def _trend(added: Array) -> float:
    """The slope over the innermost shells that could be measured."""
    last = added[np.isfinite(added)][-9:]
    return float((last[-1] - last[0]) / (len(last) - 1)) if len(last) >= 6 else -np.inf


def _room(places: Array, axis: Axis) -> Array:
    """How far the first shell reaches: not to the next knot, nor to the next zero."""
    others = np.sort(np.concatenate([places, axis.left[axis.jump], [-REACH, REACH]]))
    distance = np.abs(others[None, :] - places[:, None])
    distance[distance <= 1e-8 * np.abs(places)[:, None]] = np.inf
    room = distance.min(1) / 4
    return np.minimum(room, np.where(places == 0, 1e-2, np.abs(places) / 4))


def _falling(axis: Axis, found: Findings) -> None:
    """P must not fall: F and B move the same way."""
    way = np.sign(axis.rise)
    against = (way * axis.low < 0) & (way * axis.high < 0)
    clear = (axis.size > CLEAR * axis.noise) & ~axis.jump
    wrong = against & clear
    if not wrong.any():
        return
    intervals = np.flatnonzero(wrong)
    intervals = intervals[np.argsort(-axis.size[intervals], kind="stable")][:32]
    if not _proved(axis, intervals).any():
        if axis.bent.any():  # no news: waves that are too short for the axis
            return
        where = describe([(axis.left[intervals[0]], axis.right[intervals[0]])])
        found.doubts.append(f"P may fall on {where}: ask there alone, with within=, or give knots")
        return
    places = [each for each in runs((against | ~clear) & ~axis.jump) if wrong[slice(*each)].any()]
    where = describe([(axis.left[a], axis.right[z]) for a, z in places[:2]])
    moves, sign = ("rises", "negative") if way[intervals[0]] > 0 else ("falls", "positive")
    found.breaches.append(f"P falls on {where}: F {moves} there while B is {sign}")


def _proved(axis: Axis, intervals: NDArray[np.intp]) -> Bools:
    """Whether F goes one way and B is of the other sign at many points of each interval.

    A wave that is shorter than an interval would not do so.
    """
    t = np.linspace(0.02, 0.98, 17)[:, None]
    x = axis.left[intervals] * (1 - t) + axis.right[intervals] * t
    way = np.sign(axis.rise[intervals])
    steps = np.diff(axis.forward(x.ravel()).reshape(x.shape), axis=0) * way
    slopes = axis.backward(x.ravel()).reshape(x.shape) * way
    one_way: Bools = np.all(steps > -axis.noise[intervals], axis=0)
    against: Bools = np.all(slopes < 0, axis=0)
    return one_way & against


def _varying(axis: Axis, found: Findings) -> None:
    """P stands still where F does and B is not 0: then B must not change."""
    stretches = runs(axis.flat)
    for first, last in reversed(stretches):
        low, high = axis.low[first : last + 1], axis.high[first : last + 1]
        most = max(abs(float(low.min())), abs(float(high.max())))
        if float(high.max() - low.min()) <= VARIES * most:
            continue
        where = describe([(axis.left[first], _far_end(axis, last))])
        text = f"P is constant on {where} while B runs from {_from_to(axis, first, last, most)}"
        if _surely_flat(axis, first, last):
            found.breaches.append(f"{text}, so B is not a function of P")
            return
        found.doubts.append(
            f"F moves on {where} by less than float64 shows, if at all: "
            f"give the knot from which on it stands still, or ask within a smaller range"
        )
    _stepping(axis, stretches, found)


def _surely_flat(axis: Axis, first: int, last: int) -> bool:
    """Whether F stands still all the way between two knots, or stops abruptly.

    A map is analytic between knots: if F comes to rest smoothly, it only seems to stand still.
    """
    inside = axis.segment == axis.segment[first]
    if axis.still[inside & ~axis.jump].all():
        return True
    seen = axis.most * axis.width * axis.steepness > ENOUGH * axis.noise
    near = [(first, first - 1), (last, last + 1)]
    return any(
        0 <= beside < len(seen) and not axis.still[beside] and seen[edge] for edge, beside in near
    )


def _stepping(axis: Axis, stretches: Sequence[tuple[int, int]], found: Findings) -> None:
    """Where F stands still on both sides of a knot, B must be the same on both."""
    for (_, last), (first, _) in itertools.pairwise(stretches):
        knot = last + 1
        if first != last + 2 or not axis.jump[knot] or axis.rise[knot] != 0 or axis.leaps[knot]:
            continue
        left, right = axis.slope[last], axis.slope[first]
        if abs(left - right) > VARIES * max(abs(left), abs(right)):
            found.by_the_letter(
                float(axis.left[knot]),
                f"B goes from {left:.3g} to {right:.3g} at w = {axis.left[knot]:.3g} "
                f"where F, and so P, stands still",
            )


def _jumping(axis: Axis, found: Findings) -> None:
    """A jump of F by J counts as a rise of P by J / B."""
    for i in np.flatnonzero(axis.jump & (axis.rise != 0) & ~axis.leaps):
        place, up = float(axis.left[i]), axis.rise[i] > 0
        if axis.slope[i] == 0:
            text = f"F jumps at w = {place:.3g} while B is 0 there, so P would be infinite"
            found.by_the_letter(place, text)
        elif (axis.low[i] < 0) if up else (axis.high[i] > 0):
            way, sign = ("rises", "negative") if up else ("falls", "positive")
            text = f"P falls at w = {place:.3g}: F {way} there while B is {sign}"
            found.by_the_letter(place, text)


def _unresolved(axis: Axis, found: Findings) -> None:
    """Waves that are shorter than the intervals: nothing is known about them."""
    if not axis.bent.any():
        return
    ends = np.stack([axis.start, axis.start + axis.rise])
    near = sliding_window_view(np.pad(ends, ((0, 0), (NEAR, NEAR)), mode="edge"), 2 * NEAR + 1, 1)
    high, low = near.max((0, 2)), near.min((0, 2))
    lost = axis.bent & (axis.size > 0.05 * (high - low))
    if lost.any():
        inner = np.abs(axis.middle[lost]).min()
        found.doubts.append(
            f"F turns faster than the axis has points, first at |w| = {inner:.3g}: "
            f"ask within a smaller range, within=(-{inner / 2:.2g}, {inner / 2:.2g})"
        )


def _far_end(axis: Axis, last: int) -> float:
    """Where a run ends: never, if what follows is only the rest of B's tail."""
    rest = axis.still[last + 1 :] & ~axis.jump[last + 1 :] & ~axis.free[last + 1 :]
    return REACH if rest.all() else float(axis.right[last])


def _from_to(axis: Axis, first: int, last: int, most: float) -> str:
    """The extreme values of B on a run, in the order in which they come."""
    low, high = axis.low[first : last + 1], axis.high[first : last + 1]
    ends = [(int(high.argmax()), float(high.max())), (int(low.argmin()), float(low.min()))]
    tiny = VARIES * most
    return " to ".join(f"{0.0 if abs(value) < tiny else value:.3g}" for _, value in sorted(ends))
