"""The convergence theorem along real runs: both sides, the bound, and what breaks them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import proxbit as pb
from binarizing import binarize
from proxbit.theory import follow

pytestmark = pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")
RAW = {"scale": "none", "unit": "one"}
UNITS = {"scale": pb.Scale("unit"), "unit": "initial"}
STRENGTHS = {
    "fp": 1.0, "bc": 1.0, "pc": 0.3, "bnn": 1.0, "bnn++": 4.0, "poly+": 2.0, "ede+": 1.5,
}  # fmt: skip


def linear(method, dtype=torch.float64, strength=None, form=RAW):
    """One binary layer from 5 inputs to 2 outputs, with a float bias."""
    model = nn.Sequential(nn.Linear(5, 2)).to(dtype)
    with torch.no_grad():
        model[0].weight.normal_()
    schedule = pb.Constant(STRENGTHS[method] if strength is None else strength)
    binarize(model, pb.method(method, schedule=schedule), only="*", **form)
    return model


def data(dtype=torch.float64):
    return torch.randn(12, 5, dtype=dtype), torch.randn(12, 2, dtype=dtype)


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def train(model, optimizer, x, y, steps=10, rates=None):
    for t in range(steps):
        if rates is not None:
            optimizer.param_groups[0]["lr"] = rates[t]
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


def plain(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr)


# The sides ---------------------------------------------------------------------------------------


def sign(w):
    return np.where(w >= 0, 1.0, -1.0)


# P, F, B and R in closed form.
CLOSED = {
    "bc": (sign, sign, np.ones_like, lambda z: z**2 / 2),
    "pc": (lambda v: np.clip(v / 0.7, -1, 1),) * 2 + (np.ones_like, lambda z: 0.7 * z**2 / 2),
    "bnn": (
        lambda v: sign(v) * np.maximum(np.abs(v), 1),
        sign,
        lambda v: (np.abs(v) <= 1) * 1.0,
        lambda z: z**2 / 2,
    ),
    "ede+": (
        lambda v: v,
        lambda v: np.tanh(1.5 * v),
        lambda v: 1.5 / np.cosh(1.5 * v) ** 2,
        lambda z: z**2 / 2,
    ),
}


def oracle(method, weight, bias, x, y, rates, reference):
    """The same run and both sides of the theorem in numpy, with gradients by hand."""
    prox, forward, backward, potential = CLOSED[method]
    x, y, w, b = (t.detach().double().numpy() for t in (x, y, weight, bias))
    w_ref, b_ref = prox(reference[0]), reference[1]

    def apart(w, b):  # Delta(reference), at the latent weights w and b
        z = prox(w)
        return (potential(w_ref) - potential(z) - (w_ref - z) * w).sum() + (
            (b_ref - b) ** 2
        ).sum() / 2

    start, left, path, rows = apart(w, b), 0.0, 0.0, []
    for eta in rates:
        error = 2 * (x @ forward(w).T + b - y) / y.size
        g_w, g_b = backward(w) * (error.T @ x), error.sum(0)
        z = prox(w)
        left += eta * (((z - w_ref) * g_w).sum() + ((b - b_ref) * g_b).sum())
        w, b = w - eta * g_w, b - eta * g_b
        new = prox(w)
        path += (potential(z) - potential(new) - (z - new) * w).sum()
        path += eta**2 * (g_b**2).sum() / 2
        rows.append((left, start - apart(w, b) + path))
    return rows


@given(
    method=st.sampled_from(sorted(CLOSED)),
    seed=st.integers(0, 10**6),
    rates=st.lists(st.floats(1e-3, 0.5), min_size=1, max_size=6),
)
def test_both_sides_are_those_of_a_run_in_numpy(method, seed, rates):
    torch.manual_seed(seed)
    model, (x, y) = linear(method), data()
    other = {name: torch.randn_like(t) for name, t in model.state_dict().items()}
    optimizer = plain(model)
    start = [p.detach().clone() for p in (model[0].weight, model[0].bias)]
    trail = follow(model, optimizer, reference=other)
    train(model, optimizer, x, y, len(rates), rates)
    reference = [other["0.weight"].numpy(), other["0.bias"].numpy()]
    expected = oracle(method, *start, x, y, rates, reference)
    got = [(record.left, record.right) for record in trail.records]
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)
    assert trail.holds
    assert [record.eta for record in trail.records] == rates


@pytest.mark.parametrize("form", [RAW, UNITS], ids=["raw", "units"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", STRENGTHS)
def test_both_sides_are_equal_on_a_deep_network(method, dtype, form):
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 2))
    model.to(dtype)
    schedule = pb.Constant(STRENGTHS[method])
    binarize(model, pb.method(method, schedule=schedule), only="*", **form)
    optimizer, (x, y) = plain(model), data(dtype)
    trail = follow(model, optimizer)
    train(model, optimizer, x, y, 40)
    assert len(trail.records) == 40
    assert trail.holds, str(trail)
    last = trail.records[-1]
    assert abs(last.left) > 100 * last.rounding, "rounding could hide everything"
    assert min(min(r.moved, r.apart) for r in trail.records) >= 0
    assert last.path > 0


@settings(max_examples=6)
@given(rho=st.floats(0.1, 0.9), varrho=st.floats(0, 0.9), slope=st.floats(0.3, 2))
def test_both_sides_are_equal_for_a_transform_of_any_prox(rho, varrho, slope):
    pair = pb.from_transform(
        lambda w, s: torch.tanh(slope * w),
        lambda w, s: slope * (1 - torch.tanh(slope * w) ** 2),
        lambda w, s: pb.prox.linear_quantizer(w, rho, varrho),
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 2)).double()
    binarize(model, pair, only="*", **RAW)
    optimizer = plain(model)
    trail = follow(model, optimizer)
    train(model, optimizer, *data())
    assert trail.holds, str(trail)


# What the theorem promises -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fp", "pc"])
def test_on_a_convex_problem_the_mean_of_the_run_obeys_the_bound_and_the_bound_shrinks(method):
    """T(w) = w and a convex loss: f(mean w) - f(w) <= mean gap <= bound, for any w."""
    torch.manual_seed(1)
    model, (x, y) = linear(method), data()
    w_true = torch.tensor([[1, -1, 1, 1, -1], [-1, -1, 1, -1, 1]], dtype=torch.float64)
    y = x @ w_true.T + 0.1 * y
    best = {"0.weight": w_true, "0.bias": torch.zeros(2, dtype=torch.float64)}
    f_best = ((x @ w_true.T - y) ** 2).mean()
    optimizer = plain(model)
    trail = follow(model, optimizer, reference=best)
    mean, total, lows = [0.0, 0.0], 0.0, []
    for t in range(400):
        eta = 0.3 / math.sqrt(t + 1)
        optimizer.param_groups[0]["lr"] = eta
        quantizer = model[0].binary.weight_quantizer
        here = (quantizer.proximal(model[0].weight), model[0].bias.detach().clone())
        mean = [(total * m + eta * h) / (total + eta) for m, h in zip(mean, here, strict=True)]
        total += eta
        train(model, optimizer, x, y, 1)
        f_mean = ((x @ mean[0].T + mean[1] - y) ** 2).mean()
        record = trail.records[-1]
        lows.append(float(f_mean - f_best))
        assert lows[-1] <= record.mean_gap + 1e-9
        assert record.mean_gap <= record.bound + 1e-9
        assert record.holds
    bounds = [record.bound for record in trail.records]
    assert bounds[399] < bounds[99] / 1.5 < bounds[24] / 2.2
    assert trail.records[-1].mean_gap < trail.records[24].mean_gap / 2
    assert record.smoothing == pytest.approx(1 + total)


def test_against_the_end_of_the_same_run_the_last_distance_is_zero():
    (x, y), ends = data(), {}
    for again in (False, True):
        torch.manual_seed(3)
        model = linear("bnn++")
        optimizer = plain(model)
        trail = follow(model, optimizer, ends if again else None)
        train(model, optimizer, x, y, 12)
        ends = {name: t.clone() for name, t in model.state_dict().items()}
    apart = [record.apart for record in trail.records]
    assert apart[-1] == pytest.approx(0, abs=1e-12) and apart[0] > 1e-4


def test_by_default_the_reference_is_the_start():
    model = linear("bnn++")
    optimizer = plain(model)
    trail = follow(model, optimizer)
    train(model, optimizer, *data(), 3)
    assert trail.records[0].start == 0
    assert trail.records[0].gap == 0 == trail.records[0].left


# What breaks it ----------------------------------------------------------------------------------


def _scaled_gradient(model, optimizer):
    model[0].weight.register_hook(lambda g: 1.05 * g)


def _wrong_slope(model, optimizer):
    """The layer's B is no longer the T' of the pair that was recovered."""
    quantizer = model[0].binary.weight_quantizer
    pair = quantizer.pair
    crooked = pb.Pair(pair.forward, lambda w, s: pair.backward(w, s) * (1 + 0.1 * w), pair.name)
    quantizer.forward = lambda w: pb.quantize(w, quantizer.strength, crooked)


def _clipped(model, optimizer):
    optimizer.register_step_post_hook(lambda *_: model[0].weight.detach().clamp_(-0.5, 0.5))


def _stale_gradient(model, optimizer):
    optimizer.zero_grad = lambda: None


@pytest.mark.parametrize("corrupt", [_scaled_gradient, _wrong_slope, _clipped, _stale_gradient])
@pytest.mark.parametrize("method", ["bnn++", "pc"])
def test_what_is_not_a_step_of_the_theorem_shows(method, corrupt):
    model, (x, y) = linear(method, torch.float32), data(torch.float32)
    optimizer = plain(model)
    other = {name: torch.zeros_like(t) for name, t in model.state_dict().items()}
    trail = follow(model, optimizer, reference=other)
    corrupt(model, optimizer)
    train(model, optimizer, x, y, 20)
    assert not trail.holds
    assert "the sides differ from step" in str(trail)
    bad = [record for record in trail.records if not record.holds]
    assert abs(bad[-1].right - bad[-1].left) > 10 * bad[-1].rounding


def test_a_strength_that_moves_ends_the_trail_and_not_the_run():
    model, (x, y) = linear("bnn++"), data()
    optimizer = plain(model)
    trail = follow(model, optimizer)
    train(model, optimizer, x, y, 3)
    pb.set_strength(model, 5.0)
    before = model[0].weight.detach().clone()
    with pytest.warns(
        UserWarning, match=r"the trail ends: the strength of '0.weight' moved from 4"
    ):
        train(model, optimizer, x, y, 1)
    assert not torch.equal(before, model[0].weight)
    train(model, optimizer, x, y, 2)
    assert len(trail.records) == 3 and trail.holds
    assert "pb.Constant" in trail.ended and trail.ended in str(trail)


def test_signs_end_the_trail():
    model, (x, y) = linear("bnn++"), data()
    pb.restore(model)
    binarize(model, pb.method("bnn++", schedule=pb.Constant(2), sharp=0.4), only="*", **RAW)
    optimizer = plain(model)
    pb.attach(model, optimizer, steps=5)
    trail = follow(model, optimizer)
    with pytest.warns(UserWarning, match=r"sees the signs of '0.weight' now.*sharp=0"):
        train(model, optimizer, x, y, 5)
    assert len(trail.records) == 3 and trail.holds
    with pytest.raises(ValueError, match=r"'0\.weight' is seen as its sign"):
        follow(model, optimizer)


def test_a_constant_schedule_may_be_attached():
    model, (x, y) = linear("bnn++"), data()
    pb.restore(model)
    binarize(model, pb.method("bnn++", schedule=pb.Constant(2), sharp=0), only="*", **RAW)
    optimizer = plain(model)
    pb.attach(model, optimizer, steps=5)
    trail = follow(model, optimizer)
    train(model, optimizer, x, y, 5)
    assert len(trail.records) == 5 and trail.holds and not trail.ended


@pytest.mark.parametrize("attached_first", [True, False])
def test_a_schedule_that_rises_ends_the_trail_after_one_step(attached_first):
    model, (x, y) = linear("bnn++"), data()
    pb.restore(model)
    binarize(model, pb.method("bnn++", schedule=pb.Linear(2, 9), sharp=0), only="*", **RAW)
    optimizer = plain(model)
    handle = pb.attach(model, optimizer, steps=5) if attached_first else None
    trail = follow(model, optimizer)
    handle = handle or pb.attach(model, optimizer, steps=5)
    with pytest.warns(UserWarning, match="moved from 2 to 3.75"):
        train(model, optimizer, x, y, 5)
    assert handle.step == 5 and len(trail.records) == 1


def test_two_step_sizes_end_the_trail():
    model, (x, y) = linear("bnn++"), data()
    groups = [{"params": [model[0].weight]}, {"params": [model[0].bias], "lr": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=0.05)
    trail = follow(model, optimizer)
    with pytest.warns(UserWarning, match=r"size for all weights, and here are 0.05 and 0.1"):
        train(model, optimizer, x, y, 1)
    assert str(trail).startswith("no step was followed: the theorem has one step size")
