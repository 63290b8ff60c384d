"""The convergence theorem itself, against a run written out in plain numpy."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxbit.theory import bound
from proxbit.theory.bound import Point

numbers = partial(st.floats, allow_nan=False, allow_infinity=False)


# T, T', r and the prox of mu r in closed form; r is 0 or infinite except for the line.


def identity(w):
    return w


def one(w):
    return np.ones_like(w)


def sign(w):
    return np.where(w >= 0, 1.0, -1.0)


def nothing(w):
    return 0.0 * w


def outside(w):
    """BNN's regularizer: only weights of size 1 or more are allowed."""
    return np.where(np.abs(w) >= 1, 0.0, np.inf)


def line(c, w):
    """PC's regularizer on [-1, 1]; its prox is L with rho = mu c."""
    return np.where(np.abs(w) <= 1, -c * w**2 / 2, np.inf)


OBJECTIVES = {
    "float": (identity, one, nothing, lambda v, mu: v),
    "BC": (identity, one, lambda w: np.where(np.abs(w) == 1, 0.0, np.inf), lambda v, mu: sign(v)),
    "PC": (identity, one, partial(line, 0.2), lambda v, mu: _line_prox(v, 0.2 * mu)),
    "BNN": (
        lambda w: w.clip(-1, 1),
        lambda w: (np.abs(w) <= 1) * 1.0,
        outside,
        lambda v, mu: sign(v) * np.maximum(np.abs(v), 1),
    ),
    "tanh": (lambda w: np.tanh(2 * w), lambda w: 2 / np.cosh(2 * w) ** 2, nothing, lambda v, mu: v),
}


def _line_prox(v, rho):
    return np.clip(v / (1 - rho), -1, 1) if rho < 1 else sign(v)


def run(kind, seed, etas, use_slope=True):
    """Latent weights w*_1, w*_2, ... and gradients of a random least-squares problem."""
    transform, slope, _, prox = OBJECTIVES[kind]
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(9, 5)), rng.normal(size=9)
    latent, mu = [rng.normal(size=5)], 1.0
    gradients = []
    for eta in etas:
        w = prox(latent[-1], mu)
        g = x.T @ (x @ transform(w) - y) / 9
        gradients.append(slope(w) * g if use_slope else g)
        latent.append(latent[-1] - eta * slope(w) * g)
        mu += eta
    return latent, gradients


def both_sides(kind, latent, gradients, etas, w, s=1):
    """The theorem as the paper prints it, from step s on: r_t = mu_{t+1} r + |.|^2 / 2."""
    _, _, r, prox = OBJECTIVES[kind]
    mu = 1 + np.concatenate([[0.0], np.cumsum(etas)])
    places = [prox(v, m) for v, m in zip(latent, mu, strict=True)]

    def point(t, w):  # what R_{t-1} makes of w, where w_t was chosen
        return Point(latent[t], w, mu[t] * r(w) + w**2 / 2)

    def delta(t, w):
        return bound.distance(point(t + 1, w), point(t + 1, places[t + 1]))

    steps = range(s - 1, len(etas))  # the paper counts from 1
    left = sum(
        etas[t] * ((places[t] - w) @ gradients[t] + (r(places[t]) - r(w)).sum()) for t in steps
    )
    moved = [delta(t, places[t]) for t in steps]
    return left, delta(s - 2, w) - delta(len(etas) - 1, w) + sum(moved), [*moved, delta(-1, w)]


steps = st.lists(numbers(1e-3, 0.3), min_size=1, max_size=8)
problems = {"kind": st.sampled_from(sorted(OBJECTIVES)), "seed": st.integers(0, 10**6)}


def reference_of(kind, seed):
    prox = OBJECTIVES[kind][3]
    return prox(np.random.default_rng(seed + 1).normal(size=5), 1.0)


@settings(max_examples=60)
@given(**problems, etas=steps, s=st.integers(1, 3))
def test_with_the_slope_of_t_the_inequality_of_the_paper_is_an_equality(kind, seed, etas, s):
    s = min(s, len(etas))
    w = reference_of(kind, seed)
    left, right, distances = both_sides(kind, *run(kind, seed, etas), etas, w, s)
    assert left == pytest.approx(right, rel=1e-9, abs=1e-9)
    assert min(distances) >= -1e-9


def test_without_the_slope_of_t_it_fails_in_both_directions():
    etas, signs = [0.1] * 5, set()
    for seed in range(20):
        found = run("tanh", seed, etas, use_slope=False)
        left, right, _ = both_sides("tanh", *found, etas, reference_of("tanh", seed))
        assert abs(left - right) > 1e-3
        signs.add(left > right)
    assert signs == {True, False}


@settings(max_examples=60)
@given(kind=st.sampled_from(["float", "BC", "BNN", "tanh"]), seed=st.integers(0, 999), etas=steps)
def test_the_records_are_the_sums_written_out(kind, seed, etas):
    _, _, _, prox = OBJECTIVES[kind]
    latent, gradients = run(kind, seed, etas)
    points = [Point(v, prox(v, 1.0), prox(v, 1.0) ** 2 / 2) for v in latent]
    w = reference_of(kind, seed)
    reference = Point(w, w, w**2 / 2)
    record = bound.first(bound.distance(reference, points[0]))
    for t, eta in enumerate(etas):
        step = bound.terms(points[t], points[t + 1], reference, gradients[t], eta, 2.3e-16)
        record = bound.advanced(record, eta, bound.added([step]))
        left, right, _ = both_sides(kind, latent[: t + 2], gradients[: t + 1], etas[: t + 1], w)
        assert record.left == pytest.approx(left, rel=1e-9, abs=1e-9)
        assert record.right == pytest.approx(right, rel=1e-9, abs=1e-9)
        assert record.holds
        assert record.step == t + 1
        assert record.smoothing == pytest.approx(1 + sum(etas[: t + 1]))
        assert record.mean_gap <= record.bound + 1e-9


@given(eta=numbers(0.01, 1), seed=st.integers(0, 999))
def test_the_terms_of_a_model_are_the_sums_of_its_weights(eta, seed):
    rng = np.random.default_rng(seed)
    v, u, w, g = rng.normal(size=(4, 6))
    points = [Point(x, x, x**2 / 2) for x in (v, u, w)]
    whole = bound.terms(*points, g, eta, 1e-7)
    halves = [
        bound.terms(
            *(Point(p.latent[i], p.weight[i], p.potential[i]) for p in points), g[i], eta, 1e-7
        )
        for i in (slice(0, 2), slice(2, 6))
    ]
    both = bound.added(halves)
    for name in ("gap", "moved", "apart", "rounding"):
        assert getattr(both, name) == pytest.approx(getattr(whole, name))


@given(seed=st.integers(0, 999), size=numbers(1e-4, 1))
def test_a_step_that_is_not_eta_times_the_gradient_shows(seed, size):
    rng = np.random.default_rng(seed)
    v, w = rng.normal(size=(2, 6))
    g = v - w
    here, there, reference = (Point(x, x, x**2 / 2) for x in (v, v - 0.1 * (1 + size) * g, w))
    record = bound.first(bound.distance(reference, here))
    step = bound.terms(here, there, reference, g, 0.1, 1.2e-7)
    expected = 0.1 * size * (v - w) @ g  # by which the right side exceeds the left
    record = bound.advanced(record, 0.1, step)
    assert record.right - record.left == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert not record.holds
