"""Means, spreads and whether two accuracies differ: Welch's test, two proportions, Holm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEVEL = 0.05  # a difference counts when chance alone gives it less often than this
_TINY, _STEPS = 1e-300, 10_000


@dataclass(frozen=True)
class Sample:
    """The accuracies of one cell: one share per seed, each over ``images`` images."""

    values: tuple[float, ...]
    images: int

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return math.fsum(self.values) / len(self.values)

    @property
    def variance(self) -> float:
        """Unbiased variance over the seeds; 0 for one seed, which shows no spread."""
        mean, count = self.mean, len(self.values)
        return math.fsum((value - mean) ** 2 for value in self.values) / max(count - 1, 1)

    @property
    def std(self) -> float | None:
        """Standard deviation over the seeds; None for one seed."""
        return math.sqrt(self.variance) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """How much two means differ, how often chance alone would do that (p), and which test says so.

    ``test`` is "seeds" (Welch) or "images" (two proportions). With a ``margin``, p is of a
    difference that far from -margin.
    """

    difference: float
    p: float
    test: str
    margin: float = 0.0


def compare(a: Sample, b: Sample, margin: float = 0.0) -> Comparison:
    """Whether two cells differ: over seeds where both have a spread, else over the test images.

    One seed says nothing of the spread between seeds, so the two-proportion test then knows only
    the chance in the choice of images and is too sure of itself.
    """
    seeds = min(len(a.values), len(b.values)) > 1 and a.variance + b.variance > 0
    if seeds:
        return Comparison(a.mean - b.mean, welch(a, b, margin), "seeds", margin)
    p = two_proportions(a.mean, a.images, b.mean, b.images, margin)
    return Comparison(a.mean - b.mean, p, "images", margin)


def welch(a: Sample, b: Sample, margin: float = 0.0) -> float:
    """Two-sided p of Welch's t-test: means that differ by -margin, whatever the variances."""
    u, v = a.variance / len(a.values), b.variance / len(b.values)
    t2 = (a.mean - b.mean + margin) ** 2 / (u + v)
    share = u / (u + v)
    freedom = 1 / (share**2 / (len(a.values) - 1) + (1 - share) ** 2 / (len(b.values) - 1))
    return _beyond(math.sqrt(t2), freedom)


def _beyond(t: float, freedom: float) -> float:
    """How often Student's t is farther from 0 than this."""
    return beta_share(freedom / (freedom + t * t), freedom / 2, 0.5)


def t_bound(freedom: float, level: float = LEVEL) -> float:
    """The bound that Student's t exceeds, on either side, with the probability ``level``.

    >>> [round(t_bound(freedom), 3) for freedom in (2, 4, 6)]
    [4.303, 2.776, 2.447]
    """
    low, high = 0.0, 1.0
    while _beyond(high, freedom) > level:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > level else (low, middle)
    return high


def two_proportions(a: float, n: int, b: float, m: int, margin: float = 0.0) -> float:
    """Two-sided p of the two-proportion test: a of n images right, and b of m.

    Shares that are supposed to be equal have one variance, that of their mean; with a margin each
    has its own.
    """
    pooled = (a * n + b * m) / (n + m)
    each = ((a, n), (b, m)) if margin else ((pooled, n), (pooled, m))
    variance = math.fsum(share * (1 - share) / count for share, count in each)
    return math.erfc(abs(a - b + margin) / math.sqrt(2 * variance)) if variance > 0 else 1.0


def beta_share(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, by its continued fraction.

    >>> round(beta_share(0.5, 2.0, 3.0), 4)
    0.6875
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - beta_share(1 - x, b, a)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logs + a * math.log(x) + b * math.log1p(-x)) / a
    return front * _fraction(lambda i: _term(i, x, a, b))


def _term(i: int, x: float, a: float, b: float) -> float:
    """The i-th numerator of the continued fraction, from 1."""
    m = i // 2
    if i % 2:
        return -(a + m) * (a + b + m) * x / ((a + i - 1) * (a + i))
    return m * (b - m) * x / ((a + i - 1) * (a + i))


def _fraction(term: Callable[[int], float]) -> float:
    """1 / (1 + term(1) / (1 + term(2) / ...)), by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for i in range(1, _STEPS):
        d = 1 / ((1 + term(i) * d) or _TINY)
        c = (1 + term(i) / c) or _TINY
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return 1 / value


def holm(ps: Sequence[float]) -> list[float]:
    """The p of each of several tests, raised so that one false alarm in all is as rare as in one.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(ps)), key=ps.__getitem__)
    raised, highest = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, ps[i] * (len(ps) - rank)))
        raised[i] = highest
    return raised
