"""Every map and proximal map against the formula of its paper, in plain numpy."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxbit.core import maps, prox
from proxbit.nn import cyclic, wrap

Formula = Callable[[np.ndarray, float], np.ndarray]

SQRT2 = math.sqrt(2)


def weights(size: float = 4.0) -> st.SearchStrategy[np.ndarray]:
    """Arrays of weights; 0, -0 and the corners of every formula are among them."""
    corners = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, SQRT2, 1e-8, -1e-8]
    one = st.one_of(st.floats(-size, size), st.sampled_from(corners))
    return st.lists(one, min_size=1, max_size=16).map(np.array)


strengths = st.floats(0.01, 100)
often = settings(max_examples=8 * settings.default.max_examples)  # where there are many cases


def of(f: Callable[..., Tensor], w: np.ndarray, *args: float | None) -> np.ndarray:
    """What the library says, in float64."""
    return f(torch.tensor(w, dtype=torch.float64), *args).numpy()


# The oracles: spec section 3, each in the form of the paper that it comes from -------------------


def sign(w: np.ndarray) -> np.ndarray:
    return np.copysign(1.0, w)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(x / 2))


def swish_of_darabi(w: np.ndarray, mu: float) -> np.ndarray:
    """The form of BNN+."""
    sig = sigmoid(mu * w)
    return 2 * sig * (1 + mu * w * (1 - sig)) - 1


def swish_slope_of_darabi(w: np.ndarray, mu: float) -> np.ndarray:
    """The form of BNN+; cosh overflows far out, where the slope is 0."""
    z = np.clip(mu * w, -700, 700)
    return mu * (2 - z * np.tanh(z / 2)) / (1 + np.cosh(z))


def poly_by_cases(w: np.ndarray, t: float) -> np.ndarray:
    k = max(1 / t, 1)
    curve = k * (SQRT2 * t * w - sign(w) * t**2 * w**2 / 2)
    return np.where(np.abs(w) < SQRT2 / t, curve, k * sign(w))


def poly_slope_by_cases(w: np.ndarray, t: float) -> np.ndarray:
    return np.maximum(max(1 / t, 1) * (SQRT2 * t - t**2 * np.abs(w)), 0)


def ede(w: np.ndarray, t: float) -> np.ndarray:
    return max(1 / t, 1) * np.tanh(t * w)


def ede_slope(w: np.ndarray, t: float) -> np.ndarray:
    return max(1 / t, 1) * t * (1 - np.tanh(t * w) ** 2)


def linear_quantizer_by_cases(w: float, rho: float, varrho: float) -> float:
    """The paper's case list (eq. prox-pl), q1 = -1, q2 = 1, p2 = 0; constant beyond q1 and q2."""
    q1, q2, p2 = -1.0, 1.0, 0.0
    q1_plus, q2_minus = min(p2, q1 + rho), max(p2, q2 - rho)
    p2_minus, p2_plus = max(q1, p2 - varrho), min(q2, p2 + varrho)
    if w == p2:
        return math.copysign(p2_plus if q2_minus > p2 else q2, w)  # any value in between is allowed
    if w <= q1_plus:
        return q1
    if w >= q2_minus:
        return q2
    if w < p2:
        return q1 + (w - q1_plus) * (p2_minus - q1) / (p2 - q1_plus)
    return p2_plus + (w - p2) * (q2 - p2_plus) / (q2_minus - p2)


def soft_threshold_of_proxquant(w: np.ndarray, rho: float) -> np.ndarray:
    """Soft threshold of size rho towards sign(w), then clamp to [-1, 1]."""
    s = sign(w)
    distance = w - s
    shrunk = np.sign(distance) * np.maximum(np.abs(distance) - rho, 0)
    return np.clip(s + shrunk, -1, 1)


FORMULAS: list[tuple[Callable[..., Tensor], Formula]] = [
    (maps.identity, lambda w, s: w),
    (maps.one, lambda w, s: np.ones_like(w)),
    (maps.sign, lambda w, s: sign(w)),
    (maps.inside, lambda w, s: np.where(np.abs(w) <= 1, 1.0, 0.0)),
    (maps.triangle, lambda w, s: np.maximum(2 - 2 * np.abs(w), 0)),
    (maps.sign_swish, swish_of_darabi),
    (maps.sign_swish_slope, swish_slope_of_darabi),
    (maps.poly, poly_by_cases),
    (maps.poly_slope, poly_slope_by_cases),
    (maps.soft_sign, ede),
    (maps.soft_sign_slope, ede_slope),
]
named = pytest.mark.parametrize(("f", "formula"), FORMULAS, ids=[f.__name__ for f, _ in FORMULAS])


@named
@given(w=weights(), s=strengths)
def test_a_map_is_the_formula_of_its_paper(
    f: Callable[..., Tensor], formula: Formula, w: np.ndarray, s: float
) -> None:
    expected = formula(w, s)
    size = np.maximum(1, np.abs(expected))
    assert np.all(np.abs(of(f, w, s) - expected) <= 1e-12 * size * max(1, s))


@named
@given(w=weights(), s=strengths)
def test_a_tensor_strength_means_the_same_as_a_number(
    f: Callable[..., Tensor], formula: Formula, w: np.ndarray, s: float
) -> None:
    x = torch.tensor(w, dtype=torch.float64)
    torch.testing.assert_close(
        f(x, torch.tensor(s, dtype=torch.float64)), f(x, s), rtol=1e-14, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "f", [f for f, _ in FORMULAS] + [maps.peaked_swish, maps.peaked_swish_slope]
)
def test_the_corners_are_right_in_every_precision(
    f: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    w = torch.tensor(
        [0.0, -0.0, 0.25, -0.25, 1.0, -1.0, 8.0, -8.0, 2.0**13, -(2.0**13)], dtype=dtype
    )
    exact = f(w.double(), 4.0)
    got = f(w, torch.tensor(4.0))
    assert got.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), exact, rtol=8 * eps, atol=16 * eps)


# Slopes ------------------------------------------------------------------------------------------

SLOPES = [
    (maps.sign_swish, maps.sign_swish_slope),
    (maps.peaked_swish, maps.peaked_swish_slope),
    (maps.poly, maps.poly_slope),
    (maps.soft_sign, maps.soft_sign_slope),
]


@pytest.mark.parametrize(("f", "slope"), SLOPES, ids=[f.__name__ for f, _ in SLOPES])
@given(z=weights(12.0), s=strengths)
def test_a_slope_is_the_central_difference(
    f: Callable[..., Tensor], slope: Callable[..., Tensor], z: np.ndarray, s: float
) -> None:
    w, h = z / s, 1e-5 / s
    central = (of(f, w + h, s) - of(f, w - h, s)) / (2 * h)
    # Where a parabola ends the slope has a corner, and the difference is off by at most h |F''|.
    assert np.all(np.abs(of(slope, w, s) - central) <= 1e-4 * max(s, 1))


@given(w=weights(3.0))
def test_the_tent_of_bi_real_is_the_slope_of_its_parabolas(w: np.ndarray) -> None:
    def parabolas(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x) <= 1, 2 * x - sign(x) * x**2, sign(x))

    h = 1e-6
    central = (parabolas(w + h) - parabolas(w - h)) / (2 * h)
    assert np.all(np.abs(of(maps.triangle, w) - central) <= 1e-5)


@given(w=weights())
def test_bi_real_is_r_bnn_at_the_square_root_of_two(w: np.ndarray) -> None:
    np.testing.assert_allclose(of(maps.triangle, w), of(maps.poly_slope, w, SQRT2), atol=1e-14)


@given(w=weights(1e4), s=strengths)
@pytest.mark.parametrize("f", [maps.sign_swish, maps.peaked_swish, maps.poly, maps.soft_sign])
def test_smooth_signs_are_odd_and_their_slopes_even(
    f: Callable[..., Tensor], w: np.ndarray, s: float
) -> None:
    slope = dict(SLOPES)[f]
    scale = max(1, s, 1 / s)
    np.testing.assert_allclose(of(f, -w, s), -of(f, w, s), rtol=0, atol=1e-13 * scale)
    np.testing.assert_allclose(of(slope, -w, s), of(slope, w, s), rtol=0, atol=1e-13 * scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("f", [maps.sign_swish, maps.peaked_swish, maps.poly, maps.soft_sign])
def test_near_zero_a_smooth_sign_is_a_multiple_of_the_weight(
    f: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    """A small negative weight must not come out as 0 or positive.

    Sign-Swish is precise to a rounding of 1 there, the others to a rounding of the weight.
    """
    sizes = torch.logspace(-12, -2, 41, dtype=torch.float64).to(dtype)
    w = torch.cat([sizes, -sizes])
    slope = dict(SLOPES)[f](torch.zeros(1, dtype=torch.float64), 2.0)
    got = f(w, torch.tensor(2.0)).double()
    line = slope * w.double()
    assert torch.equal(got.sign(), line.sign())
    rounding = torch.finfo(dtype).eps * line.abs()
    assert bool(((got - line).abs() <= 8 * rounding + w.double() ** 2 * slope).all())


# Facts of spec sections 3.1 and 3.4 --------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_sign_of_a_zero_is_its_sign_bit(dtype: torch.dtype) -> None:
    w = torch.tensor([0.0, -0.0], dtype=dtype)
    assert maps.sign(w).tolist() == [1.0, -1.0]
    assert prox.linear_quantizer(w, 1.0).tolist() == [1.0, -1.0]
    assert prox.hubara(w, 2.0).tolist() == [1.0, -1.0]


def test_the_sign_has_two_values_on_the_smallest_numbers_too() -> None:
    tiny = torch.tensor([5e-324, -5e-324, 1e-310, -1e-310], dtype=torch.float64)
    assert maps.sign(tiny).tolist() == [1.0, -1.0, 1.0, -1.0]


@pytest.mark.parametrize("mu", [0.5, 5.0, 30.0])
def test_sign_swish_peaks_at_its_own_peak(mu: float) -> None:
    u = np.linspace(0, 30, 300_001)
    f, slope = of(maps.sign_swish, 2 * u / mu, mu), of(maps.sign_swish_slope, 2 * u / mu, mu)
    assert f.max() == pytest.approx(1.1996786, abs=1e-7)
    assert u[f.argmax()] == pytest.approx(1.1996786, abs=1e-4)
    assert 2 * u[f.argmax()] == pytest.approx(2.3994, abs=3e-4)
    assert u[f.argmax()] * np.tanh(u[f.argmax()]) == pytest.approx(1, abs=2e-4)
    assert u[np.argmax(f >= 1)] == pytest.approx(0.639, abs=1e-3)
    assert slope[0] == mu
    assert slope.min() == pytest.approx(-0.0738 * mu, abs=1e-4 * mu)
    assert 2 * u[slope.argmin()] == pytest.approx(3.436, abs=1e-3)
    assert np.all(slope[u > 1.2] <= 0)
    for tolerance, z in [(0.05, 5.08), (0.01, 7.11), (0.001, 9.77)]:
        last = 2 * u[np.flatnonzero(np.abs(f - 1) > tolerance)[-1]]
        assert last == pytest.approx(z, abs=0.01)


@pytest.mark.parametrize("mu", [0.5, 5.0, 30.0])
def test_the_monotone_variant_is_sign_swish_up_to_the_peak_and_then_flat(mu: float) -> None:
    peak = 1.1996786402577337
    w = np.linspace(-6, 6, 12_001) / mu
    f = of(maps.peaked_swish, w, mu)
    stopped = np.clip(w, -2 * peak / mu, 2 * peak / mu)
    np.testing.assert_allclose(f, swish_of_darabi(stopped, mu) / peak, atol=1e-14)
    assert np.all(np.diff(f) >= -1e-15)
    assert np.all(of(maps.peaked_swish_slope, w, mu) >= 0)
    assert f[-1] == pytest.approx(1, abs=1e-15)


@given(w=weights(), t=st.floats(0.01, 1))
def test_poly_starts_as_a_multiple_of_the_weight(w: np.ndarray, t: float) -> None:
    assert of(maps.poly_slope, np.zeros(1), t)[0] == pytest.approx(SQRT2)
    assert np.all(np.abs(of(maps.poly, w, t)) <= 1 / t + 1e-12)


# The linear quantizer, spec section 3.2 ----------------------------------------------------------


@often
@given(w=weights(2.0), rho=st.floats(0, 1.5), varrho=st.floats(0, 1.5))
def test_the_linear_quantizer_is_the_case_list_of_the_paper(
    w: np.ndarray, rho: float, varrho: float
) -> None:
    if 1e-12 > 1 - min(rho, 1) > 0:
        rho = 1.0  # a slope of 1e12: rounding decides
    expected = [linear_quantizer_by_cases(x, rho, varrho) for x in w]
    slope = 1 / max(1 - rho, 1e-12) if rho < 1 else 1
    got = of(prox.linear_quantizer, w, rho, varrho)
    np.testing.assert_allclose(got, expected, atol=4e-16 * max(slope, 1), rtol=0)


@often
@given(w=weights(3.0), rho=st.floats(0, 1.5))
def test_tied_heights_make_it_the_soft_threshold_of_proxquant(w: np.ndarray, rho: float) -> None:
    expected = soft_threshold_of_proxquant(w, rho)
    np.testing.assert_allclose(of(prox.linear_quantizer, w, rho, None), expected, atol=1e-15)
    np.testing.assert_allclose(of(prox.linear_quantizer, w, rho, rho), expected, atol=1e-15)


@given(w=weights(3.0), rho=st.floats(0, 0.999))
def test_height_zero_makes_it_a_steeper_clamp(w: np.ndarray, rho: float) -> None:
    expected = np.clip(w / (1 - rho), -1, 1)
    expected = np.where(w == 0, 0, expected)
    np.testing.assert_allclose(
        of(prox.linear_quantizer, w, rho, 0.0), expected, atol=1e-15 / (1 - rho)
    )


@given(w=weights(1e4), rho=st.floats(1, 100), varrho=st.one_of(st.none(), st.floats(0, 2)))
def test_from_rho_one_on_it_is_exactly_the_sign(
    w: np.ndarray, rho: float, varrho: float | None
) -> None:
    np.testing.assert_array_equal(of(prox.linear_quantizer, w, rho, varrho), sign(w))


@often
@given(w=weights(2.0), rho=st.floats(0, 1.2), varrho=st.floats(0, 1))
def test_a_proximal_map_is_monotone(w: np.ndarray, rho: float, varrho: float) -> None:
    w = np.sort(w + 0.0)  # -0.0 lies below 0.0, and sorting does not see it
    assert np.all(np.diff(of(prox.linear_quantizer, w, rho, varrho)) >= -1e-15)
    assert np.all(np.diff(of(prox.hubara, w, 1 + rho)) >= -1e-15)


@often
@given(w=weights(5.0), mu=st.floats(1, 50))
def test_the_prox_behind_bnn_makes_sign_and_indicator(w: np.ndarray, mu: float) -> None:
    beyond = w / mu + sign(w) * (1 - 1 / mu)
    p = of(prox.hubara, w, mu)
    np.testing.assert_allclose(p, np.where(np.abs(w) <= 1, sign(w), beyond), atol=1e-14)
    np.testing.assert_array_equal(np.clip(p, -1, 1), of(maps.sign, w))  # T o P = F, T = hardtanh
    inner = np.abs(p) <= 1  # T' o P = B, with the one-sided derivative at the kink
    assert np.all(inner[np.abs(w) <= 1])
    assert not np.any(inner[np.abs(w) >= 1 + 1e-9])


# The unit-test vectors of spec section 16 ---------------------------------------------------------

VECTORS = [
    (maps.sign_swish, maps.sign_swish_slope, 5, 0.1, 0.479922375, 4.412290270),
    (maps.sign_swish, maps.sign_swish_slope, 5, 0.2, 0.855341024, 3.023661188),
    (maps.sign_swish, maps.sign_swish_slope, 5, 0.5, 1.198802223, -0.084621565),
    (maps.sign_swish, maps.sign_swish_slope, 5, 1.0, 1.053094865, -0.194992255),
    (maps.sign_swish, maps.sign_swish_slope, 30, 0.01, 0.295560021, 28.679866092),
    (maps.sign_swish, maps.sign_swish_slope, 30, 0.05, 1.082588309, 9.371855098),
    (maps.sign_swish, maps.sign_swish_slope, 30, 0.1, 1.176208212, -1.939284271),
    (maps.sign_swish, maps.sign_swish_slope, 30, 0.5, 1.000008565, -0.000238603),
    (maps.poly, maps.poly_slope, 0.1, 0.5, 0.694606781, 1.364213562),
    (maps.poly, maps.poly_slope, SQRT2, 0.5, 0.75, 1.0),
    (maps.poly, maps.poly_slope, 10, 0.05, 0.582106781, 9.142135624),
    (maps.soft_sign, maps.soft_sign_slope, 0.1, 0.5, 0.499583750, 0.997504161),
    (maps.soft_sign, maps.soft_sign_slope, 10, 0.05, 0.462117157, 7.864477330),
]


@pytest.mark.parametrize(("f", "b", "s", "w", "value", "slope"), VECTORS)
def test_the_vectors_of_the_spec(
    f: Callable[..., Tensor],
    b: Callable[..., Tensor],
    s: float,
    w: float,
    value: float,
    slope: float,
) -> None:
    at = np.array([w, -w])
    np.testing.assert_allclose(of(f, at, s), [value, -value], atol=5.01e-10)
    np.testing.assert_allclose(of(b, at, s), [slope, slope], atol=5.01e-10)


@pytest.mark.parametrize(
    ("rho", "varrho", "expected"),
    [
        (0.2, 0.0, [-1, -1, -0.375, -0.0625]),
        (0.2, 0.2, [-1, -1, -0.5, -0.25]),
        (0.0, 0.2, [-1, -0.92, -0.44, -0.24]),
        (0.5, 0.5, [-1, -1, -0.8, -0.55]),
        (1.0, 0.0, [-1, -1, -1, -1]),
        (1.0, 0.7, [-1, -1, -1, -1]),
        (0.2, 1.0, [-1, -1, -1, -1]),
        (0.2, 7.0, [-1, -1, -1, -1]),  # both heights are cut at 1
        (10.0, None, [-1, -1, -1, -1]),
    ],
)
def test_the_vectors_of_the_linear_quantizer(
    rho: float, varrho: float | None, expected: list[float]
) -> None:
    w = np.array([-1.5, -0.9, -0.3, -0.05])
    np.testing.assert_allclose(of(prox.linear_quantizer, w, rho, varrho), expected, atol=1e-15)
    np.testing.assert_allclose(
        of(prox.linear_quantizer, -w, rho, varrho), -np.array(expected), atol=1e-15
    )


def test_the_vectors_of_the_cyclic_function() -> None:
    z = torch.tensor([64.0, 86, 100, 127, 128, 129, 171, 200, 300, -129])
    assert cyclic(wrap(z, 8), 8, 1).tolist() == [64, 42, 28, 1, 0, -1, -43, -56, 44, 1]
    assert cyclic(wrap(z, 8), 8, 2).tolist() == [64, 84, 56, 2, 0, -2, -85, -56, 44, 2]
