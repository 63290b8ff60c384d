"""Verdicts beyond doubt: what is infinite, what is invariant, what is not resolved, what trains."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import proxbit as pb
from proxbit.core import maps
from proxbit.core.methods import METHODS, Method
from proxbit.core.pairs import sharpened
from proxbit.theory import check, recover, repair


def _one(w, s):
    return torch.ones_like(w)


def _sech2(w):
    return 1 / torch.cosh(w) ** 2


def _pair(forward, backward):
    return pb.Pair(lambda w, s: forward(w), lambda w, s: backward(w))


# P must be finite -----------------------------------------------------------------------------

INFINITE = {
    "hard tanh, triangle": pb.Pair(maps.hard_tanh, maps.triangle),
    "w, |w|": _pair(lambda w: w, torch.abs),
    "w, w^2": _pair(lambda w: w, torch.square),
    "w, (w - 0.3)^2": _pair(lambda w: w, lambda w: (w - 0.3) ** 2),
    "tanh, |w| sech^2": _pair(torch.tanh, lambda w: w.abs() * _sech2(w)),
    "w, 0 on a sliver": _pair(
        lambda w: w, lambda w: torch.where((w >= 0.5) & (w <= 0.501), 0.0, 1)
    ),
    "w, 0 on a hair": _pair(lambda w: w, lambda w: 1.0 * ((w < 2) | (w > 2.00001))),
}
FINITE = {
    "w, sqrt|w|": _pair(lambda w: w, lambda w: w.abs().sqrt()),
    "w|w|, |w|": _pair(lambda w: w * w.abs(), torch.abs),
    "w^3, w^2": _pair(lambda w: w**3, torch.square),
    "hard tanh, sqrt": _pair(lambda w: w.clamp(-1, 1), lambda w: (1 - w.abs()).clamp_min(0).sqrt()),
}


@pytest.mark.parametrize("key", INFINITE)
def test_a_pair_whose_prox_would_be_infinite_is_refused(key):
    verdict = check(INFINITE[key])
    assert verdict.answer == "refused" and not verdict.otherwise
    assert "P would be infinite" in str(verdict)


@pytest.mark.parametrize("key", FINITE)
def test_a_zero_of_backward_that_forward_slows_down_for_is_admitted(key):
    assert check(FINITE[key]).admitted, str(check(FINITE[key]))


@settings(max_examples=40)
@given(power=st.floats(0.1, 3.0), at=st.floats(-2, 2))
def test_the_power_of_a_zero_decides(power, at):
    # dP = dw / |w - at|^power: finite if and only if the power is below 1.
    verdict = check(_pair(lambda w: w, lambda w: (w - at).abs() ** power))
    expected = "admitted" if power < 1 else "refused"
    near = 0.9 <= power < 1
    assert verdict.answer == expected or (near and verdict.answer == "not resolved"), str(verdict)


# Verdicts do not depend on the units of F, B and w, nor on what happens far away -----------------

CATALOGUE = {
    "bc": pb.binary_connect, "pc": pb.prox_connect(), "bnn": pb.bnn, "bnn++": pb.bnn_plus_plus,
    "poly+": pb.poly_plus, "ede+": pb.ede_plus, "bnn+": pb.bnn_plus, "bi-real": pb.bi_real,
    "r-bnn": pb.r_bnn, "ede": pb.ede, "cubic": _pair(lambda w: w**3 - 0.3 * w,
                                                    lambda w: (3 * w * w - 0.3).abs()),
    "hard tanh, triangle": INFINITE["hard tanh, triangle"],
}  # fmt: skip
REFUSED = {"bnn+", "bi-real", "r-bnn", "ede", "cubic", "hard tanh, triangle"}
powers = st.floats(-9, 9)


@settings(max_examples=60)
@given(key=st.sampled_from(sorted(CATALOGUE)), tall=powers, steep=powers, wide=st.floats(-3, 1.5))
def test_the_verdict_does_not_depend_on_the_units(key, tall, steep, wide):
    pair, a, b, c = CATALOGUE[key], 10**tall, 10**steep, 10**wide
    same = pb.Pair(
        lambda w, s: a * pair.forward(w / c, s), lambda w, s: b * pair.backward(w / c, s)
    )
    verdict = check(same, 2.0)
    assert verdict.answer == ("refused" if key in REFUSED else "admitted"), str(verdict)


@settings(max_examples=40)
@given(key=st.sampled_from(sorted(CATALOGUE)), power=st.floats(0, 9))
def test_a_far_tail_does_not_change_the_verdict(key, power):
    pair, tall = CATALOGUE[key], 10**power
    with_tail = pb.Pair(
        lambda w, s: pair.forward(w, s) + tall * (w - 900).relu(),
        lambda w, s: torch.where(w > 900, tall, pair.backward(w, s)),
    )
    reasons = check(with_tail, 2.0).reasons
    far = [reason for reason in reasons if "900" in reason]
    assert bool(set(reasons) - set(far)) is (key in REFUSED), reasons


# What float64 and so many points cannot decide ---------------------------------------------------


def test_a_wave_is_no_proof():
    wave = _pair(torch.sin, torch.cos)
    assert check(wave).admitted
    fast = _pair(lambda w: torch.sin(1e4 * w), lambda w: torch.cos(1e4 * w))
    verdict = check(fast)
    assert verdict.answer == "not resolved" and not verdict.reasons
    assert "within=" in verdict.doubts[0]
    assert check(fast, within=(-0.05, 0.05)).admitted


@pytest.mark.parametrize(
    ("pair", "inside"),
    [
        (_pair(lambda w: w, lambda w: torch.exp(-w * w)), (-20.0, 20.0)),
        (_pair(lambda w: w, lambda w: 1 - torch.tanh(w) ** 2), (-15.0, 15.0)),
    ],
)
def test_what_underflows_is_not_refused(pair, inside):
    verdict = check(pair)
    assert verdict.answer == "not resolved" and "float64" in str(verdict)
    assert check(pair, within=inside).admitted


def test_a_forward_that_comes_to_rest_before_backward_does_is_admitted():
    assert check(_pair(lambda w: torch.tanh(5 * w), _sech2)).admitted
    # And one that stops, instead of coming to rest, is refused.
    assert check(_pair(lambda w: w.clamp(-1, 1), _sech2)).answer == "refused"


def test_a_power_that_is_too_close_to_call_is_not_resolved():
    verdict = check(_pair(lambda w: w, lambda w: w.abs() ** 0.95))
    assert verdict.answer == "not resolved" and "too close to call" in str(verdict)


@pytest.mark.parametrize("within", [(1.0, -1.0), (0.0, 0.0), (-np.inf, 1.0)])
def test_a_range_that_is_none_is_a_mistake(within):
    with pytest.raises(ValueError, match="within is a range"):
        check(pb.bnn, within=within)


# Where the letter of the corollary asks for too much ---------------------------------------------

BY_THE_LETTER = {
    "down": _pair(lambda w: w - 3.0 * (w >= 0), torch.ones_like),
    "no slope": pb.Pair(maps.sign, lambda w, s: 0 * w),
    "two slopes": _pair(torch.ones_like, lambda w: 2 * maps.sign(w)),
}


@pytest.mark.parametrize("key", BY_THE_LETTER)
def test_a_jump_that_only_the_letter_refuses_has_a_decomposition(key):
    pair = BY_THE_LETTER[key]
    verdict = check(pair)
    assert verdict.answer == "refused" and verdict.otherwise
    assert str(verdict).startswith("refused: by the letter of Corollary 1")
    option = repair(pair)[0]
    assert option.verdict.admitted and "jump at w = 0" in option.how
    found = recover(option.pair)
    w = np.linspace(-2, 2, 80) + 0.013
    z = found.prox(w)
    assert (np.diff(z) >= 0).all()
    np.testing.assert_allclose(
        found.transform(z), pair.forward(torch.from_numpy(w), 1.0).numpy(), atol=1e-6
    )
    low, high = found.gaps[0]
    inside = np.array([low + 1e-5, high - 1e-5])
    ends = np.array([low, high])
    slope = (found.transform(inside) - found.transform(ends)) / (inside - ends)
    beside = pair.backward(torch.tensor([-1e-6, 1e-6], dtype=torch.float64), 1.0).numpy()
    np.testing.assert_allclose(slope, beside, atol=1e-3)


def test_a_breach_is_never_called_a_matter_of_letters():
    assert all(not check(CATALOGUE[key], 2.0).otherwise for key in REFUSED)


# Methods by phase --------------------------------------------------------------------------------

SOFT = Method("BNN++", pb.bnn_plus_plus, pb.Logarithmic(1, 3))


@pytest.mark.parametrize(
    ("sharp", "frozen", "answer", "shares"),
    [
        (0.0, 0.0, "admitted", [1.0]),
        (0.5, 0.0, "admitted in part", [0.5, 0.5]),
        (1.0, 0.0, "refused", [1.0]),
        (0.5 / 0.85, 0.15, "admitted in part", [0.35, 0.5, 0.15]),
        (0.0, 0.15, "admitted", [0.85, 0.15]),
    ],
)
def test_a_method_is_judged_by_what_trains_in_each_phase(sharp, frozen, answer, shares):
    verdict = check(replace(SOFT, sharp=sharp), frozen=frozen)
    assert verdict.answer == answer
    assert [phase.share for phase in verdict.phases] == pytest.approx(shares)
    for phase in verdict.phases:
        trained = {"BNN++": "admitted", "signs of BNN++": "refused", "nothing": None}
        said = None if phase.verdict is None else phase.verdict.answer
        assert said == trained[phase.what]


@pytest.mark.parametrize("key", METHODS)
@pytest.mark.parametrize("sharp", [None, 0.0, 0.3, 1.0])
def test_no_run_is_called_admitted_of_which_a_part_is_refused(key, sharp):
    method = METHODS[key] if sharp is None else replace(METHODS[key], sharp=sharp)
    verdict = check(method)
    if method.rule != pb.methods.PC:
        assert verdict.answer == "refused"
        return
    soft = check(method.pair, float(method.schedule(0.5)))
    signs = check(sharpened(method.pair), float(method.schedule(1.0)))
    trained = [soft] * (method.sharp < 1 or not method.binary) + [signs] * (
        method.sharp > 0 and method.binary
    )
    assert verdict.admitted is all(each.admitted for each in trained)


def test_a_sharp_strength_is_that_of_the_signs():
    verdict = check(replace(SOFT, sharp=0.5, sharp_strength=7.0))
    assert verdict.phases[1].verdict.strengths == (7.0,)
    assert "B runs from 7 to" in str(verdict)


def test_a_schedule_is_judged_along_the_way_and_may_fall():
    falling = check(replace(SOFT, schedule=pb.Linear(30, 5)))
    assert falling.admitted and falling.strengths[0] == 30 and falling.strengths[-1] == 5

    def bump(progress):  # the same at both ends
        return 1.0 + 4.0 * (0.3 < progress < 0.7)

    def backward(w, s):
        return torch.where(torch.as_tensor(s) > 3, -1.0, 1.0) * maps.sign_swish_slope(w, s)

    between = Method("odd", pb.Pair(maps.sign_swish, backward), bump)
    verdict = check(between)
    assert verdict.answer == "refused" and "at strength 5" in str(verdict)


@pytest.mark.parametrize("key", ["hard tanh, triangle", "w, |w|"])
def test_no_verdict_takes_more_than_a_fifth_of_a_second(key):
    def once():
        start = time.process_time()
        check(INFINITE[key])
        return time.process_time() - start

    assert min(once() for _ in range(3)) < 0.2
