"""The contract of a pair: what training, hardening and packing rely on."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from proxbit.core.pairs import Map, Pair
from proxbit.nn.autograd import quantize
from proxbit.testing.backends import available_backends, use_backend

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
STRENGTHS = (0.01, 0.3, 1.0, 4.0, 30.0)
_SHAPES = ((), (0,), (3, 5), (2, 1, 3, 3))


def check_pair(
    pair: Pair,
    strengths: Sequence[float] = STRENGTHS,
    *,
    backends: Sequence[str] | None = None,
    compile: bool = False,
) -> None:
    """Raise an AssertionError, in one sentence, if ``pair`` breaks a law that proxbit relies on.

    The laws: F and B are pure, elementwise, finite up to |w| = 1e4, and keep shape and dtype; the
    network sees F and the gradient is multiplied by B, exactly, whichever kernels compute; the pair
    works under ``torch.vmap``. What it declares must hold: exactly +-1 if ``hard``, no jump outside
    ``knots``, the ``limit`` of large strengths. If it can be pickled, its copy is the same pair.

    Args:
        pair: The pair to check.
        strengths: The strengths at which to look at it; give those of your schedule.
        backends: The kernels to compute with; all that run on this machine by default.
        compile: Whether to compile it as well, which takes seconds: one graph for all strengths.
    """
    if not isinstance(pair, Pair):
        raise TypeError(f"check_pair takes a proxbit.Pair, not {type(pair).__name__}")
    for s in strengths:
        for dtype in DTYPES:
            _keeps_shape_and_dtype(pair, s, dtype)
            _is_finite(pair, s, dtype)
            _is_pure_and_elementwise(pair, s, dtype)
            _is_hard_as_declared(pair, s, dtype)
        _jumps_only_at_knots(pair, s)
        _maps_over_a_batch(pair, s)
        _survives_a_copy(pair, s)
    _tends_to_its_limit(pair)
    for name in available_backends() if backends is None else backends:
        with use_backend(name):
            for s in strengths:
                _network_sees_f_and_gradient_b(pair, s, name)
    if compile:
        _compiles_once(pair, strengths)


def values(dtype: torch.dtype, knots: Sequence[float] = ()) -> Tensor:
    """Weights on which pairs tend to fail: zeros, tiny, large, around knots and in between."""
    sizes = torch.tensor([0.0, 1e-30, 1e-6, 1e-3, 0.3, 1.0, 2.0, 7.0, 1e2, 1e4])
    near = torch.tensor([k + d for k in knots for d in (-1e-3, 0.0, 1e-3)])
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(64, generator=generator) * torch.tensor([0.1, 1.0]).repeat(32)
    return torch.cat([sizes, -sizes, near, spread]).to(dtype)


def _maps(pair: Pair) -> tuple[tuple[str, Map], ...]:
    return ("F", pair.forward), ("B", pair.backward)


def _refuse(bad: Tensor, law: str, how: str, w: Tensor, **found: Tensor) -> None:
    """Raise the law with the first value that breaks it, and with what was found there."""
    if bool(bad.any()):
        i = int(bad.flatten().nonzero()[0])
        shown = ", ".join(f"{name} = {t.flatten()[i].item():.9g}" for name, t in found.items())
        raise AssertionError(f"{law}, and at w = {w.flatten()[i].item():.9g} {shown} ({how})")


def _setting(s: float, dtype: torch.dtype) -> str:
    return f"strength {s:g}, {str(dtype).removeprefix('torch.')}"


def _keeps_shape_and_dtype(pair: Pair, s: float, dtype: torch.dtype) -> None:
    for name, f in _maps(pair):
        for shape in _SHAPES:
            w = torch.ones(shape, dtype=dtype)
            # Two 0-d tensors would promote each other: the layers never let them meet.
            got = f(w, torch.tensor(s, dtype=torch.float32 if w.dim() else dtype))
            if not isinstance(got, Tensor) or got.shape != w.shape or got.dtype != dtype:
                raise AssertionError(
                    f"{pair.name}: {name} must keep shape and dtype, and of {tuple(shape)}, "
                    f"{dtype} it makes {_described(got)} (strength {s:g})"
                )


def _described(got: Any) -> str:
    return f"{tuple(got.shape)}, {got.dtype}" if isinstance(got, Tensor) else repr(got)


def _is_finite(pair: Pair, s: float, dtype: torch.dtype) -> None:
    w = values(dtype, _knots(pair, s))
    for name, f in _maps(pair):
        got = f(w, torch.tensor(s))
        law = f"{pair.name}: {name} must be finite up to |w| = 1e4"
        _refuse(~got.isfinite(), law, _setting(s, dtype), w, **{name: got})


def _is_pure_and_elementwise(pair: Pair, s: float, dtype: torch.dtype) -> None:
    w, strength = values(dtype, _knots(pair, s)), torch.tensor(s)
    kept, order = w.clone(), torch.arange(len(w)).flip(0)
    how, near = _setting(s, dtype), 1e-2 if dtype is torch.bfloat16 else 1e-5
    for name, f in _maps(pair):
        once, again = f(w, strength).clone(), f(w, strength)
        if not torch.equal(w, kept):
            raise AssertionError(f"{pair.name}: {name} changes the weight that it is given")
        law = f"{pair.name}: {name} must give the same twice"
        _refuse(once != again, law, how, w, first=once, second=again)
        other = f(w[order].clone(), strength)[order]
        bad = ~torch.isclose(once, other, rtol=near, atol=1e-6)
        law = f"{pair.name}: {name} must be elementwise"
        _refuse(bad, law, f"{how}, the others in another order", w, before=once, after=other)


def _is_hard_as_declared(pair: Pair, s: float, dtype: torch.dtype) -> None:
    if not pair.hard:
        return
    w = values(dtype, _knots(pair, s))
    got = pair.forward(w, torch.tensor(s))
    law = f"{pair.name}: it is declared hard, so F must be exactly +1 or -1"
    _refuse(got.abs() != 1, law, _setting(s, dtype), w, F=got)


def _knots(pair: Pair, s: float) -> tuple[float, ...]:
    return () if pair.knots is None else tuple(pair.knots(s))


def _jumps_only_at_knots(pair: Pair, s: float) -> None:
    if pair.knots is None:
        return
    edges = torch.linspace(-4.013, 4.017, 301, dtype=torch.float64)
    low, high = edges[:-1], edges[1:]
    knots = torch.tensor(_knots(pair, s), dtype=torch.float64)
    free = ((low[:, None] > knots) | (high[:, None] < knots)).all(1)
    for name, f in _maps(pair):
        at, size = largest_jumps(f, s, low[free], high[free])
        law = f"{pair.name}: {name} may jump at its knots {_knots(pair, s)} only"
        how = f"strength {s:g}; declare it, or leave knots=None"
        _refuse(size >= 1e-8 * max(s, 1) ** 2, law, how, at, jump=size)


def largest_jumps(f: Map, s: float, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Place and size of the largest jump inside each interval, by halving towards it."""
    strength = torch.tensor(s, dtype=torch.float64)
    for _ in range(40):
        middle = (low + high) / 2
        at_low, at_middle, at_high = (f(x, strength) for x in (low, middle, high))
        left = (at_middle - at_low).abs() > (at_high - at_middle).abs()
        low, high = torch.where(left, low, middle), torch.where(left, middle, high)
    return low, (f(high, strength) - f(low, strength)).abs()


def _tends_to_its_limit(pair: Pair) -> None:
    if pair.limit is None:
        return
    w = values(torch.float64)
    w = w[pair.limit(w - 1e-3) == pair.limit(w + 1e-3)]  # not at a jump of the limit
    got, limit = pair.forward(w, torch.tensor(1e6)), pair.limit(w)
    law = f"{pair.name}: F must tend to its limit as the strength grows"
    _refuse((got - limit).abs() > 1e-6, law, "strength 1e6", w, F=got, limit=limit)


def _maps_over_a_batch(pair: Pair, s: float) -> None:
    w = values(torch.float32)[:80].reshape(8, 10)
    strength = torch.tensor(s)
    mapped = torch.vmap(lambda row: quantize(row, strength, pair))(w)
    alone = torch.stack([pair.forward(row, strength) for row in w])
    bad = ~torch.isclose(mapped, alone, rtol=1e-5, atol=1e-6)
    law = f"{pair.name}: torch.vmap must give what F gives"
    _refuse(bad, law, f"strength {s:g}", w, vmap=mapped, F=alone)


def _survives_a_copy(pair: Pair, s: float) -> None:
    w, strength = values(torch.float32), torch.tensor(s)
    copies = {"a deep copy": copy.deepcopy(pair)}
    with suppress(pickle.PicklingError, AttributeError, TypeError):  # Python pickles no lambdas
        copies["the unpickled pair"] = pickle.loads(pickle.dumps(pair))
    for what, twin in copies.items():
        for (name, f), (_, g) in zip(_maps(pair), _maps(twin), strict=True):
            one, other = f(w, strength), g(w, strength)
            law = f"{pair.name}: {name} of {what} must be the same"
            _refuse(one != other, law, f"strength {s:g}", w, before=one, after=other)


# Kernels agree with the formulas to a few roundings, and exactly for signs; bfloat16 they compute
# in float32 and round once.
_RELATIVE, _ABSOLUTE = {torch.float32: 2e-5, torch.bfloat16: 2.0**-8}, 1e-6


def _network_sees_f_and_gradient_b(pair: Pair, s: float, backend: str) -> None:
    for dtype in DTYPES:
        w = values(dtype, _knots(pair, s)).requires_grad_()
        g = torch.randn(len(w), generator=torch.Generator().manual_seed(1)).to(dtype)
        seen = quantize(w, s, pair)
        (pulled,) = torch.autograd.grad(seen, w, g)
        strength, plain = torch.tensor(s), w.detach()
        f, b = pair.forward(plain, strength), g * pair.backward(plain, strength)
        how = f"{_setting(s, dtype)}, kernels {backend}"
        # Relative to the slope, since s B cancels where it crosses zero.
        size = max(1.0, s)
        near_f = near_b = None
        if backend != "torch" and dtype in _RELATIVE:
            v = plain.float()
            near_f = None if pair.hard else pair.forward(v, strength)
            near_b = g.float() * pair.backward(v, strength) / size
        _same(f"{pair.name}: the network must see F", plain, seen.detach(), f, near_f, how)
        law = f"{pair.name}: the gradient must be B times the one that arrives"
        _same(law, plain, pulled.double() / size, b.double() / size, near_b, how)


def _same(law: str, w: Tensor, got: Tensor, wanted: Tensor, near: Tensor | None, how: str) -> None:
    """The formula itself, or what kernels may give: a value near to that of float32."""
    bad = got != wanted
    if near is not None:
        bad &= ~torch.isclose(got.double(), near.double(), _RELATIVE[w.dtype], _ABSOLUTE)
    _refuse(bad, law, how, w, got=got, wanted=wanted)


def _compiles_once(pair: Pair, strengths: Sequence[float]) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda w, s, g: (quantize(w, s, pair) * g).sum(), fullgraph=True, backend=counter
    )
    for s in strengths:
        w = torch.randn(3, 5, requires_grad=True)
        g, strength = torch.randn(3, 5), torch.tensor(s)
        (found,) = torch.autograd.grad(compiled(w, strength, g), w)
        (wanted,) = torch.autograd.grad((quantize(w, s, pair) * g).sum(), w)
        bad = ~torch.isclose(found, wanted, rtol=1e-4, atol=1e-5 * max(1.0, s))
        law = f"{pair.name}: the gradient must be the same when compiled"
        _refuse(bad, law, f"strength {s:g}", w.detach(), compiled=found, eager=wanted)
    if counter.frame_count != 1:
        raise AssertionError(
            f"{pair.name}: a moving strength must not recompile, and {len(strengths)} strengths "
            f"took {counter.frame_count} graphs"
        )
