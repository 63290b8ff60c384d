"""Verdicts against the truth: hundreds of random pairs that are, or are not, (T o P, T' o P)."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import proxbit as pb
from proxbit.core.methods import ADMITTED, METHODS, method
from proxbit.theory import check

EACH = 30  # pairs of every kind


@dataclass(frozen=True)
class Drawn:
    """A random pair with what it was built from."""

    pair: pb.Pair
    knots: tuple[float, ...]
    slopes: tuple[float, ...]  # of P between its knots, and beyond them
    scale: float

    def stretch(self, rng, flat):
        """A part of a random segment where P stands still, or moves; None if there is none."""
        inner = [
            (a, b)
            for a, b, slope in zip(self.knots, self.knots[1:], self.slopes[1:-1], strict=False)
            if (slope == 0) is flat
        ]
        if not inner:
            return None
        low, high = inner[rng.integers(len(inner))]
        ends = np.sort(rng.uniform(0.1, 0.9, 2)) * (high - low) + low
        return (low, high) if flat else (float(ends[0]), float(ends[1] + 0.05 * (high - low)))


def _monotone(rng, scale):
    """P: lines between a few knots, flat here and there, with jumps; and what it is made of."""
    count = int(rng.integers(2, 5))
    knots = np.sort(rng.uniform(-2, 2, count)) + np.arange(count) * 0.2
    slopes = rng.uniform(0.3, 2, count + 1) * (rng.random(count + 1) > 0.35)
    jumps = rng.uniform(0.2, 1.5, count) * (rng.random(count) < 0.4)

    def p(w, s):
        z = w / scale
        value = (z - knots[0]).clamp_max(0) * slopes[0] + (z - knots[-1]).clamp_min(0) * slopes[-1]
        for i in range(count - 1):
            value = value + slopes[i + 1] * (z.clamp(knots[i], knots[i + 1]) - knots[i])
        for knot, jump in zip(knots, jumps, strict=True):
            value = value + jump * (z >= knot)
        return value

    return p, tuple(float(k) * scale for k in knots), tuple(float(k) for k in slopes)


def _transform(rng):
    """T and T', which may rise and fall, saturate, and bend."""
    a, b, c = rng.uniform(0.5, 2), rng.uniform(-0.9, 0.9), rng.uniform(-1, 1)
    kinds = [
        (lambda z: a * z + b * torch.sin(a * z), lambda z: a + a * b * torch.cos(a * z)),
        (
            lambda z: torch.tanh(a * z + c),
            lambda z: a / torch.cosh((a * z + c).clamp(-300, 300)) ** 2,
        ),
        (lambda z: -a * z, lambda z: -a * torch.ones_like(z)),
        (lambda z: pb.maps.sign_swish(z, 2 * a), lambda z: pb.maps.sign_swish_slope(z, 2 * a)),
        (
            lambda z: torch.where(z > c, a * (z - c), z - c),
            lambda z: torch.where(z > c, a, 1.0).to(z),
        ),
    ]
    return kinds[rng.integers(len(kinds))]


def _draw(seed):
    """A pair that has a decomposition, at any scale of w, F and B."""
    rng = np.random.default_rng(seed)
    scale, tall, steep = (
        10 ** rng.uniform(-2, 1.5),
        10 ** rng.uniform(-8, 8),
        10 ** rng.uniform(-8, 8),
    )
    p, knots, slopes = _monotone(rng, scale)
    t, slope = _transform(rng)
    pair = pb.Pair(lambda w, s: tall * t(p(w, s)), lambda w, s: steep * slope(p(w, s)))
    return rng, Drawn(pair, knots, slopes, scale), p


def _varying(rng, drawn):
    """B varies smoothly where P stands still."""
    place = drawn.stretch(rng, flat=True)
    if place is None:
        return None
    low, high = place
    eps = rng.uniform(0.01, 0.5)

    def bump(w):
        return 1 + eps * torch.sin((w - low) / (high - low) * 3).where((w > low) & (w < high), 0.0)

    return replace(drawn.pair, backward=lambda w, s: drawn.pair.backward(w, s) * bump(w))


def _falling(rng, drawn):
    """B has the wrong sign on a part where F moves."""
    return _on_a_part(rng, drawn, -1.0)


def _dead(rng, drawn):
    """B is zero on a part where F moves."""
    return _on_a_part(rng, drawn, 0.0)


def _on_a_part(rng, drawn, factor):
    place = drawn.stretch(rng, flat=False)
    if place is None:
        return None
    low, high = place

    def backward(w, s):
        return drawn.pair.backward(w, s) * torch.where((w > low) & (w < high), factor, 1.0).to(w)

    return replace(drawn.pair, backward=backward)


def _infinite(rng, drawn):
    """B has a zero that F does not slow down for."""
    place = drawn.stretch(rng, flat=False)
    if place is None:
        return None
    centre, power = sum(place) / 2, rng.uniform(1.0, 3.0)

    def backward(w, s):
        return drawn.pair.backward(w, s) * ((w - centre) / drawn.scale).abs() ** power

    return replace(drawn.pair, backward=backward)


def _visible(drawn, broken):
    """Whether float64 shows the part that was spoilt: not in the tail of a smooth transform."""
    w = torch.linspace(drawn.knots[0], drawn.knots[-1], 2001, dtype=torch.float64)
    b = drawn.pair.backward(w, 1.0)
    spoilt = (broken.backward(w, 1.0) - b).abs() > 1e-9 * b.abs()
    return bool((b.abs()[spoilt] > 1e-6 * b.abs().max()).any())


def _count(verdicts, right):
    wrong = [str(v) for v in verdicts if not right(v) and v.answer != "not resolved"]
    open_ = [str(v) for v in verdicts if v.answer == "not resolved"]
    return wrong, open_


def test_every_pair_with_a_decomposition_is_admitted_or_refused_by_the_letter_alone():
    verdicts = [check(_draw(seed)[1].pair) for seed in range(4 * EACH)]
    wrong, open_ = _count(verdicts, lambda v: v.admitted or v.otherwise)
    assert not wrong, f"{len(wrong)} false refusals, first {wrong[0]}"
    assert len(open_) <= 0.05 * len(verdicts), f"{len(open_)} not resolved, first {open_[0]}"


def test_a_declared_prox_admits_every_one_of_them():
    for seed in range(EACH):
        _, drawn, p = _draw(seed)
        verdict = check(replace(drawn.pair, proximal=p))
        assert verdict.admitted or verdict.answer == "not resolved", f"seed {seed}: {verdict}"


@pytest.mark.parametrize("spoil", [_varying, _falling, _dead, _infinite])
def test_no_pair_without_a_decomposition_is_admitted(spoil):
    verdicts = []
    for seed in range(2 * EACH):
        rng, drawn, _ = _draw(seed)
        broken = spoil(rng, drawn)
        if broken is not None and _visible(drawn, broken):
            verdicts.append(check(broken))
    wrong, open_ = _count(verdicts, lambda v: v.answer == "refused" and not v.otherwise)
    assert len(verdicts) >= EACH / 2
    assert not wrong, f"{len(wrong)} false admissions of {len(verdicts)}, first {wrong[0]}"
    assert len(open_) <= 0.05 * len(verdicts), f"{len(open_)} not resolved, first {open_[0]}"


@pytest.mark.parametrize("name", METHODS)
def test_the_admitted_settings_are_those_that_the_corollary_admits(name: str) -> None:
    """Every method that can be admitted has them, and no other."""
    if name in ADMITTED:
        found = method(name, "admitted")
        assert check(found).answer == "admitted" and not found.sharp
    else:
        assert check(replace(METHODS[name], sharp=0.0)).answer == "refused"
        with pytest.raises(ValueError, match="has no admitted settings"):
            method(name, "admitted")
