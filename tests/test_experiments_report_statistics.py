"""The tests behind bold figures and claims, beside oracles that share no code with them."""

from itertools import combinations
from math import gamma, pi, sqrt
from statistics import NormalDist, mean, variance

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxbit.experiments.report.statistics import (
    Sample,
    beta_share,
    compare,
    holm,
    two_proportions,
    welch,
)

SHARES = st.floats(0.01, 0.99)
SEEDS = st.lists(SHARES, min_size=2, max_size=6).filter(lambda values: np.std(values) > 1e-4)


def student_tails(t: float, freedom: float) -> float:
    """Two-sided p of Student's t: one minus the area of its density between -t and t."""
    x = np.linspace(0.0, abs(t), 20_001)
    front = gamma((freedom + 1) / 2) / (sqrt(freedom * pi) * gamma(freedom / 2))
    return 1 - 2 * float(np.trapezoid(front * (1 + x * x / freedom) ** (-(freedom + 1) / 2), x))


@given(SEEDS, SEEDS)
def test_welch_is_the_textbook_formula(a, b):
    u, v = variance(a) / len(a), variance(b) / len(b)
    t = (mean(a) - mean(b)) / sqrt(u + v)
    assume(abs(t) < 40)  # beyond, the oracle's steps are too coarse
    freedom = (u + v) ** 2 / (u * u / (len(a) - 1) + v * v / (len(b) - 1))
    p = welch(Sample(tuple(a), 100), Sample(tuple(b), 100))
    assert p == pytest.approx(student_tails(t, freedom), abs=1e-5)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_the_critical_values_of_printed_tables_give_five_percent(freedom, t):
    assert beta_share(freedom / (freedom + t * t), freedom / 2, 0.5) == pytest.approx(
        0.05, rel=1e-4
    )


@given(st.floats(0, 1), st.floats(0.5, 40), st.floats(0.5, 40))
def test_the_two_tails_of_a_beta_distribution_make_one(x, a, b):
    assert beta_share(x, a, b) + beta_share(1 - x, b, a) == pytest.approx(1, abs=1e-9)
    assert beta_share(x, 1.0, b) == pytest.approx(1 - (1 - x) ** b, abs=1e-9)


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 50), st.integers(1, 50))
def test_two_proportions_is_the_pooled_normal_test(right, n, good, m):
    a, b = min(right, n) / n, min(good, m) / m
    pooled = (min(right, n) + min(good, m)) / (n + m)
    deviation = sqrt(pooled * (1 - pooled) / n + pooled * (1 - pooled) / m)
    tails = 2 * NormalDist(0, deviation).cdf(-abs(a - b)) if 0 < pooled < 1 else 1.0
    assert two_proportions(a, n, b, m) == pytest.approx(tails, abs=1e-9)


def test_equal_networks_look_different_five_times_in_a_hundred():
    """The false alarms of both tests, counted on samples drawn from one distribution."""
    draw = np.random.default_rng(0)
    seeds = [tuple(draw.normal(0.8, 0.01, 4)) for _ in range(4000)]
    pairs = list(zip(seeds[::2], seeds[1::2], strict=True))
    alarms = [compare(Sample(a, 10_000), Sample(b, 10_000)).p < 0.05 for a, b in pairs]
    assert 0.03 < np.mean(alarms) < 0.06
    counts = draw.binomial(10_000, 0.8, 4000) / 10_000
    alarms = [two_proportions(a, 10_000, b, 10_000) < 0.05 for a, b in counts.reshape(-1, 2)]
    assert 0.035 < np.mean(alarms) < 0.065


def test_a_margin_moves_what_counts_as_equal():
    """False alarms where the first is exactly a margin below the second, by both tests."""
    draw = np.random.default_rng(1)
    high, low = (draw.normal(mean, 0.01, (2000, 4)) for mean in (0.9, 0.8))
    alarms = [
        compare(Sample(tuple(a), 10_000), Sample(tuple(b), 10_000), 0.1).p < 0.05
        for a, b in zip(low, high, strict=True)
    ]
    assert 0.03 < np.mean(alarms) < 0.06
    a, b = (draw.binomial(2_000, share, 4000) / 2_000 for share in (0.85, 0.95))
    alarms = [two_proportions(x, 2_000, y, 2_000, 0.1) < 0.05 for x, y in zip(a, b, strict=True)]
    assert 0.035 < np.mean(alarms) < 0.065


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closure_of_bonferroni(ps):
    """Raised p of one test: the worst Bonferroni p of any set of tests that it belongs to."""
    places = range(len(ps))
    sets = [s for size in range(1, len(ps) + 1) for s in combinations(places, size)]
    worst = [max(min(1, len(s) * min(ps[j] for j in s)) for s in sets if i in s) for i in places]
    assert holm(ps) == pytest.approx(worst)


@given(SEEDS, SEEDS)
def test_a_comparison_turned_round_changes_its_sign_only(a, b):
    one, two = Sample(tuple(a), 500), Sample(tuple(b), 700)
    there, back = compare(one, two), compare(two, one)
    assert there.difference == -back.difference
    assert there.p == pytest.approx(back.p) and there.test == back.test == "seeds"


def test_one_seed_is_judged_by_its_images():
    one, many = Sample((0.8,), 10_000), Sample((0.82, 0.83, 0.84), 10_000)
    assert one.std is None and many.std == pytest.approx(0.01)
    found = compare(one, many)
    assert found.test == "images"
    assert found.p == two_proportions(0.8, 10_000, many.mean, 10_000)


def test_seeds_without_any_spread_are_judged_by_their_images():
    found = compare(Sample((0.8, 0.8), 100), Sample((0.9, 0.9), 100))
    assert found.test == "images" and 0 < found.p < 1
