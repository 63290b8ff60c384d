"""Corollary 1 as a tool: the verdicts."""

import math
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import proxbit as pb
from proxbit.theory import check, recover
from proxbit.theory.layout import lay_out

# The "in PC++?" column of the method table, by hand.
IN_THE_FAMILY = {
    "fp": True, "ptb": False, "bc": True, "pc": True, "pq": False, "rpc": False, "bnn": True,
    "bnn+": False, "bnn++": True, "bi-real": False, "r-bnn": False, "poly+": True, "ede": False,
    "ede+": True, "react": True, "bnn++prox": True,
}  # fmt: skip
ADMITTED = {
    "fp": pb.full_precision, "bc": pb.binary_connect, "pc": pb.prox_connect(),
    "pc-tied": pb.prox_connect(None), "pc-steep": pb.prox_connect(0.3), "bnn": pb.bnn,
    "bnn++": pb.bnn_plus_plus, "monotone": pb.monotone_bnn_plus_plus, "poly+": pb.poly_plus,
    "ede+": pb.ede_plus,
}  # fmt: skip
REFUSED = {"bnn+": pb.bnn_plus, "bi-real": pb.bi_real, "r-bnn": pb.r_bnn, "ede": pb.ede}
PAIRS = ADMITTED | REFUSED
every_pair = pytest.mark.parametrize("key", PAIRS)
numbers = partial(st.floats, allow_nan=False, allow_infinity=False)


# Verdicts ----------------------------------------------------------------------------------------


def test_the_table_names_every_method():
    assert set(IN_THE_FAMILY) == set(pb.METHODS) == set(pb.PAPER)


@pytest.mark.parametrize("settings", ["default", "paper"])
@pytest.mark.parametrize("key", IN_THE_FAMILY)
def test_the_verdict_of_every_method_is_the_paper_s(key, settings):
    # A default may go on with signs, which is another pair: see test_theory_certainty.
    verdict = check(replace(pb.method(key, settings), sharp=0.0))
    assert verdict.admitted is IN_THE_FAMILY[key], str(verdict)
    assert bool(verdict.reasons) is not verdict.admitted
    assert str(verdict).startswith("admitted" if verdict.admitted else "refused")


@every_pair
def test_a_pair_has_one_verdict_at_every_strength(key):
    for strength in (0.01, 0.3, 1.0, 5.0, 30.0, 1e3, (0.1, 10.0)):
        assert check(PAIRS[key], strength).admitted is (key in ADMITTED), strength


@settings(max_examples=40)
@given(
    key=st.sampled_from(sorted(PAIRS)), by=numbers(-5, 5), s=st.sampled_from([0.4, 1.0, 5.0, 30.0])
)
def test_a_shifted_pair_inherits_the_verdict(key, by, s):
    verdict = check(pb.shifted(PAIRS[key], by), s)
    assert verdict.admitted is (key in ADMITTED), f"by {by}, strength {s}: {verdict}"


@settings(max_examples=40)
@given(key=st.sampled_from(sorted(PAIRS)), power=numbers(-3, 2), s=st.sampled_from([0.4, 1.0, 5.0]))
def test_a_scaled_pair_inherits_the_verdict(key, power, s):
    verdict = check(pb.scaled(PAIRS[key], 10**power), s)
    assert verdict.admitted is (key in ADMITTED), f"by {10**power}, strength {s}: {verdict}"


@pytest.mark.parametrize("by", [50.0, -300.0])
@every_pair
def test_a_pair_shifted_far_out_inherits_the_verdict(key, by):
    verdict = check(pb.shifted(PAIRS[key], by), 30.0)
    assert verdict.admitted is (key in ADMITTED), str(verdict)


@settings(max_examples=40)
@given(key=st.sampled_from(sorted(PAIRS)), by=numbers(-3, 3), s=st.sampled_from([0.4, 1.0, 5.0]))
def test_undeclared_knots_are_found(key, by, s):
    declared = pb.shifted(PAIRS[key], by)
    a, b = check(declared, s), check(replace(declared, knots=None), s)
    assert a.admitted is b.admitted, f"{a} / {b}"
    # B of Poly+ reaches 0 without a break: there the edge is known to an interval only.
    np.testing.assert_allclose(np.ravel(a.free), np.ravel(b.free), rtol=2e-2, atol=1e-2)


# Pairs built as (T o P, T' o P) ------------------------------------------------------------------


def _tanh(a, b, w, s):
    return torch.tanh(a * w)


def _tanh_slope(a, b, w, s):
    return a * (1 - torch.tanh(a * w) ** 2)


def _wave(a, b, w, s):
    return a * w + b * torch.sin(w)


def _wave_slope(a, b, w, s):
    return a + b * torch.cos(w)


def _ripple(b, w, s):
    return w + b * torch.sin(w) * torch.exp(-w * w / 8)


def _ripple_slope(b, w, s):
    return 1 + b * (torch.cos(w) - w * torch.sin(w) / 4) * torch.exp(-w * w / 8)


def _cut(a, b, w, s):
    return w.clamp(-1 - abs(b), 1 + abs(b))


def _cut_slope(a, b, w, s):
    return (w.abs() <= 1 + abs(b)).to(w.dtype)


def _falling(a, b, w, s):
    return -_wave(a, b, w, s)


def _falling_slope(a, b, w, s):
    return -_wave_slope(a, b, w, s)


NOWHERE_FLAT = [(_tanh, _tanh_slope), (_wave, _wave_slope), (_falling, _falling_slope)]
TRANSFORMS = [*NOWHERE_FLAT, (_cut, _cut_slope)]


@st.composite
def transforms(draw, among):
    """T and T' with T' not 0 on [-1, 1]."""
    value, slope = draw(st.sampled_from(among))
    a = draw(numbers(0.2, 3.0))
    b = a * draw(numbers(-0.9, 0.9))
    return partial(value, a, b), partial(slope, a, b)


@st.composite
def linear_quantizers(draw):
    """L with any rho and varrho: flat from 1 - rho on; the sign at rho = 1."""
    rho, varrho = draw(numbers(0.02, 1.0)), draw(numbers(0.0, 1.0))
    return lambda w, s: pb.prox.linear_quantizer(w, rho, varrho)


def _identity(w, s):
    return pb.maps.identity(w)


def _sign(w, s):
    return pb.maps.sign(w)


@given(
    t=transforms(TRANSFORMS),
    p=st.one_of(linear_quantizers(), st.sampled_from([_identity, _sign])),
    by=numbers(-2, 2),
)
def test_every_pair_built_from_a_prox_and_a_transform_is_admitted(t, p, by):
    pair = pb.from_transform(*t, lambda w, s: p(w - by, s))
    assert check(pair).admitted, str(check(pair))


@given(t=transforms(NOWHERE_FLAT), p=linear_quantizers(), eps=numbers(0.01, 0.5))
def test_a_backward_that_varies_where_the_prox_is_flat_is_refused(t, p, eps):
    pair = pb.from_transform(*t, p)

    def bent(w, s):
        return pair.backward(w, s) * (1 + eps * torch.sin(3 * w))

    verdict = check(replace(pair, backward=bent))
    assert not verdict.admitted
    assert any("constant on" in reason and "w" in reason for reason in verdict.reasons)


@given(
    t=transforms(NOWHERE_FLAT),
    p=st.one_of(linear_quantizers(), st.sampled_from([_identity, _sign])),
    low=numbers(-0.9, 0.8),
    width=numbers(0.02, 0.5),
)
def test_a_backward_with_its_sign_flipped_on_an_interval_is_refused(t, p, low, width):
    pair = pb.from_transform(*t, p)

    def flipped(w, s):
        return pair.backward(w, s) * torch.where((w > low) & (w < low + width), -1.0, 1.0)

    assert not check(replace(pair, backward=flipped)).admitted


@given(t=transforms(NOWHERE_FLAT), eps=numbers(-0.5, 0.5))
def test_where_the_prox_rises_any_backward_of_the_right_sign_will_do(t, eps):
    pair = pb.from_transform(*t, _identity)

    def bent(w, s):
        return pair.backward(w, s) * (1 + eps * torch.sin(w))

    assert check(replace(pair, backward=bent)).admitted


@given(t=transforms(NOWHERE_FLAT), p=linear_quantizers())
def test_recover_gives_back_the_prox_a_pair_was_built_from(t, p):
    # Where T is not the identity P is known up to T on its gap: compare where it is one number.
    w = np.linspace(-2.5, 2.5, 401) + 0.00037  # off every jump
    found = recover(pb.from_transform(*t, p))
    q = p(torch.from_numpy(w), 1.0).numpy()
    same = found.prox(w)
    for half in (w > 0, w < 0):
        np.testing.assert_allclose(
            same[half] - same[half][0], q[half] - q[half][0], atol=2e-3 * (1 + np.ptp(q))
        )
    # The pair is the composition, to within the kinks.
    f = t[0](torch.from_numpy(q), 1.0).numpy()
    np.testing.assert_allclose(found.transform(same), f, atol=5e-3)


@given(by=numbers(-3, 3), power=numbers(-2, 2))
def test_a_kink_of_forward_is_not_a_jump(by, power):
    # Hard tanh with its derivative: at the kink B breaks, and F does not jump.
    pair = pb.Pair(pb.maps.hard_tanh, pb.maps.inside, "hard tanh")
    for moved in (pb.shifted(pair, by), pb.scaled(pair, 10**power)):
        assert check(moved).admitted, f"{moved.name}: {check(moved)}"


@given(
    bend=numbers(-4.0, 4.0),
    p=st.one_of(linear_quantizers(), st.sampled_from([_identity, _sign])),
    by=numbers(-2, 2),
)
def test_a_transform_may_rise_and_fall(bend, p, by):
    def moved(w, s):
        return p(w - by, s)

    pair = pb.from_transform(partial(_ripple, bend), partial(_ripple_slope, bend), moved)
    assert check(pair).admitted, str(check(pair))


def test_a_prox_may_jump_to_where_the_transform_falls():
    # The paper's BNN++ with a non-trivial r. T is free inside the gap of P, so F may jump up
    # while B is negative: T(0.6) > T(-0.6) although T'(0.6) < 0.
    pair = pb.from_transform(
        pb.maps.sign_swish,
        pb.maps.sign_swish_slope,
        lambda w, s: pb.prox.linear_quantizer(w, 0.5, 0.6),
    )
    for same in (pair, pb.shifted(pair, 0.7), pb.scaled(pair, 2.0)):
        assert check(same, 5.0).admitted, f"{same.name}: {check(same, 5.0)}"
    found = recover(pair, 5.0)
    w = np.linspace(-2, 2, 400) + 0.0003
    q = pb.prox.linear_quantizer(torch.from_numpy(w), 0.5, 0.6).numpy()
    np.testing.assert_allclose(found.prox(w), q, atol=1e-4)
    assert found.gaps[0] == pytest.approx((-0.6, 0.6), abs=1e-6)
    assert max(found.residuals.values()) < 1e-2
    # F and B alone do not tell how far P jumps; then a jump counts as in the corollary's integral.
    verdict = check(replace(pair, proximal=None), 5.0)
    assert "F rises there while B is negative" in str(verdict)


def test_a_pair_may_stand_still_where_its_prox_jumps():
    # T(-1) = T(1) with other slopes: F is constant, and B is a function of P.
    pair = pb.from_transform(lambda w, s: w**3 - w + w**2, lambda w, s: 3 * w**2 - 1 + 2 * w, _sign)
    assert check(pair).admitted
    assert recover(pair).gaps == ((-1.0, 1.0),)


def test_the_reason_names_the_place():
    assert "on w > 0 while B runs from 5 to -0.369" in str(check(pb.bnn_plus, 5.0))
    assert "on 0 < w < 1 while B runs from 2 to 0" in str(check(pb.bi_real))
    assert "on 3 < w < 4 while" in str(check(pb.shifted(pb.bi_real, 3.0)))
    dead = pb.Pair(pb.maps.identity, pb.maps.inside)
    assert "while B is 0" in str(check(dead))
    falling = pb.Pair(lambda w, s: -torch.tanh(w), lambda w, s: 1 - torch.tanh(w) ** 2)
    assert "P falls on" in str(check(falling))
    assert "at strength 1:" in str(check(pb.ede, (1.0, 30.0)))


@pytest.mark.parametrize(
    ("pair", "strength", "edge"),
    [(pb.bnn, 1.0, 1.0), (pb.poly_plus, 0.1, 10 * math.sqrt(2)), (pb.poly_plus, 10.0, 0.141421)],
)
def test_free_segments_are_where_backward_is_zero(pair, strength, edge):
    free = check(pair, strength).free
    expected = [(-np.inf, -edge), (edge, np.inf)]
    np.testing.assert_allclose(free, expected, rtol=2e-2)


def test_the_edge_of_a_smooth_backward_is_found_to_nine_digits():
    (_, low), (high, _) = check(pb.poly_plus, 0.1).free
    assert (-low, high) == pytest.approx((10 * math.sqrt(2),) * 2, rel=1e-9)


@pytest.mark.parametrize("strength", [-1.0, math.nan, math.inf, (1.0, math.nan)])
@pytest.mark.parametrize("key", ["bnn", "pq", "ptb"])
def test_a_strength_that_is_none_is_a_mistake(key, strength):
    with pytest.raises(ValueError, match="strength"):
        check(pb.METHODS[key], strength)


def _nan(w, s):
    return torch.where(w > 2, torch.nan, w)


def _raises(w, s):
    raise KeyError("lost")


BAD_MAPS = {
    "nan": (_nan, "not finite at w = "),
    "infinite": (lambda w, s: 1 / (w - 1).relu(), "not finite"),
    "shape": (lambda w, s: w[:1], "not elementwise"),
    "scalar": (lambda w, s: 1.0, "not elementwise"),
    "nothing": (lambda w, s: None, "not elementwise"),
    "mean": (lambda w, s: w - w.mean(), "not elementwise"),
    "cumsum": (lambda w, s: w.cumsum(0), "not elementwise"),
    "sorted": (lambda w, s: w.sort().values, "not elementwise"),
    "raises": (_raises, "KeyError.*lost"),
    "one argument": (lambda w: w, "TypeError"),
}


@pytest.mark.parametrize("side", ["forward", "backward"])
@pytest.mark.parametrize("bad", BAD_MAPS)
def test_what_is_no_pair_is_a_mistake_and_says_which_map(bad, side):
    broken, message = BAD_MAPS[bad]
    pair = replace(pb.Pair(pb.maps.identity, pb.maps.one), **{side: broken})
    with pytest.raises(ValueError, match=message) as error:
        check(pair)
    assert side in str(error.value)


def test_a_map_that_writes_into_its_input_cannot_spoil_the_axis():
    in_place = pb.Pair(lambda w, s: w.clamp_(-1, 1), pb.maps.inside)
    assert check(in_place).free == check(pb.Pair(pb.maps.hard_tanh, pb.maps.inside)).free


@pytest.mark.parametrize("key", ["bnn++", "ede+", "pc", "bnn"])
def test_one_verdict_takes_less_than_a_fifth_of_a_second(key):
    def once():
        start = time.process_time()
        check(ADMITTED[key], 0.5)
        return time.process_time() - start

    assert any(once() < 0.2 for _ in range(30))  # other work on the machine slows many of them


@pytest.mark.parametrize("key", sorted(pb.METHODS))
def test_a_verdict_over_the_range_of_a_method_takes_less_than_a_fifth_of_a_second(key):
    def once():
        start = time.process_time()
        check(pb.METHODS[key])
        return time.process_time() - start

    assert any(once() < 0.2 for _ in range(30))


@settings(max_examples=60)
@given(
    place=numbers(-2, 2),
    steep=numbers(1, 20),
    power=numbers(-3, -0.5),
    sign=st.sampled_from([-1, 1]),
)
def test_a_rise_hides_no_jump_up_or_down(place, steep, power, sign):
    size = sign * 10**power

    def forward(w, s):
        return torch.tanh(steep * w) + size * (w >= place).to(w.dtype)

    pair = pb.Pair(forward, pb.maps.one)
    axis = lay_out(pair, 1.0)
    found = axis.rise[axis.jump & (np.abs(axis.left - place) < 1e-8)]
    np.testing.assert_allclose(found, [size], rtol=1e-3)
    assert check(pair).admitted is (sign > 0)
