"""One training step is the paper's equation: every method against plain numpy in float64.

The layer is y = x W^T with loss |y - target|^2 / 2, so that the gradient at an effective weight v
is (x v^T - target)^T x. Nothing of the library is used on the side of the oracle.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import proxbit as pb

pytestmark = pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")

STEPS, RATE, INPUTS, OUTPUTS = 20, 0.05, 5, 3

Array = np.ndarray
Step = Callable[[Array, Array], Array]


# The oracle: F, B, schedule, unit, scale and rule of every method --------------------------------


def sign(w: Array) -> Array:
    return np.where(w >= 0, 1.0, -1.0)


def swish(w: Array, mu: float) -> Array:
    u = mu * w / 2
    return np.tanh(u) + u * (1 - np.tanh(u) ** 2)


def swish_slope(w: Array, mu: float) -> Array:
    u = mu * w / 2
    return mu * (1 - np.tanh(u) ** 2) * (1 - u * np.tanh(u))


def linear_quantizer(w: Array, rho: float, varrho: float) -> Array:
    r, v = min(rho, 1), min(varrho, 1)
    if r == 1:
        return sign(w)
    line = sign(w) * (v + np.abs(w) * (1 - v) / (1 - r))
    return np.where(np.abs(w) >= 1 - r, sign(w), line)


def poly(w: Array, t: float) -> Array:
    k = max(1 / t, 1)
    curve = k * (math.sqrt(2) * t * w - sign(w) * t**2 * w**2 / 2)
    return np.where(np.abs(w) < math.sqrt(2) / t, curve, k * sign(w))


def poly_slope(w: Array, t: float) -> Array:
    return np.maximum(max(1 / t, 1) * (math.sqrt(2) * t - t**2 * np.abs(w)), 0)


def ede(w: Array, t: float) -> Array:
    return max(1 / t, 1) * np.tanh(t * w)


def ede_slope(w: Array, t: float) -> Array:
    return max(1 / t, 1) * t * (1 - np.tanh(t * w) ** 2)


def one(w: Array, s: float) -> Array:
    return np.ones_like(w)


def hard(w: Array, s: float) -> Array:
    return sign(w)


def inside(w: Array, s: float) -> Array:
    return np.where(np.abs(w) <= 1, 1.0, 0.0)


def tent(w: Array, s: float) -> Array:
    return np.maximum(2 - 2 * np.abs(w), 0)


def linear(start: float, end: float) -> Callable[[int], float]:
    return lambda t: start + (end - start) * t / (STEPS - 1)


def logarithmic(start: float, end: float, steps: int = STEPS) -> Callable[[int], float]:
    low, high = math.log10(start), math.log10(end)
    return lambda t: 10 ** (low + (high - low) * min(t / (steps - 1), 1))


def constant(value: float) -> Callable[[int], float]:
    return lambda t: value


@dataclass(frozen=True)
class Row:
    """One row of the spec's method table.

    Attributes:
        F: Forward quantizer of (w in its unit, strength).
        B: Backward quantizer of the same.
        schedule: Strength (or lambda, where ``by_rate``) at a step.
        rule: "PC++", "PQ", "rPC" or "PTB", as in spec section 4.
        scale: "none", "mean", "ls" or "unit".
        per: "layer" or "channel".
        unit: "raw", "current" mean|w| (as fine as the scale) or "initial" mean|w| of the layer.
        by_rate: Whether the threshold is learning rate times lambda, over the unit.
        soft: Steps after which the network sees the sign of F.
    """

    F: Callable[[Array, float], Array]
    B: Callable[[Array, float], Array]
    schedule: Callable[[int], float] = lambda t: 1.0
    rule: str = "PC++"
    scale: str = "mean"
    per: str = "channel"
    unit: str = "raw"
    by_rate: bool = False
    soft: int = STEPS


def untied(w: Array, rho: float) -> Array:
    return linear_quantizer(w, rho, 0)


def tied(w: Array, rho: float) -> Array:
    return linear_quantizer(w, rho, rho)


def prox_swish(w: Array, rho: float) -> Array:
    return swish(untied(w, rho), 0.5) / swish(np.ones(1), 0.5)


def prox_swish_slope(w: Array, rho: float) -> Array:
    return swish_slope(untied(w, rho), 0.5) / swish(np.ones(1), 0.5)


LOG = logarithmic(1e-2, 1e1)
SIGNS = Row(swish, swish_slope, logarithmic(1, 3, 10), scale="ls", unit="current", soft=10)
PROXIMAL = Row(tied, one, linear(0, 0.3), "PQ", "unit", "layer", "initial", by_rate=True)
DEFAULT = {
    "fp": Row(lambda w, s: w, one, scale="none"),
    "ptb": Row(hard, one, rule="PTB"),
    "bc": Row(hard, one),
    "pc": Row(untied, one, linear(0, 2), unit="current"),
    "pq": PROXIMAL,
    "rpc": replace(PROXIMAL, rule="rPC"),
    "bnn": Row(hard, inside),
    "bnn+": Row(hard, swish_slope, constant(0.5), unit="initial"),
    "bnn++": SIGNS,
    "bnn++prox": Row(prox_swish, prox_swish_slope, linear(0, 2), scale="ls", unit="current"),
    "bi-real": Row(hard, tent),
    "r-bnn": Row(hard, poly_slope, LOG),
    "poly+": replace(SIGNS, F=poly, B=poly_slope),
    "ede": Row(hard, ede_slope, logarithmic(0.1, 10)),
    "ede+": replace(SIGNS, F=ede, B=ede_slope),
}
LITERAL = replace(PROXIMAL, schedule=linear(0.01, 10), by_rate=False)
PAPER = {
    "fp": DEFAULT["fp"],
    "ptb": Row(hard, one, rule="PTB", per="layer"),
    "bc": Row(hard, one, per="layer"),
    "pc": Row(tied, one, linear(0.01, 10), per="layer", unit="current"),
    "pq": LITERAL,
    "rpc": replace(LITERAL, rule="rPC"),
    "bnn": Row(hard, inside, per="layer"),
    "bnn+": Row(hard, swish_slope, constant(5), per="layer"),
    "bnn++": Row(swish, swish_slope, linear(5, 30), per="layer"),
    "bnn++prox": Row(prox_swish, prox_swish_slope, linear(0.01, 10), per="layer", unit="current"),
    "bi-real": Row(hard, tent, per="layer"),
    "r-bnn": Row(hard, poly_slope, LOG, per="layer"),
    "poly+": Row(poly, poly_slope, LOG, per="layer"),
    "ede": Row(hard, ede_slope, logarithmic(0.1, 10), per="layer"),
    "ede+": Row(ede, ede_slope, logarithmic(0.1, 10), per="layer"),
}
ROWS = {"default": DEFAULT, "paper": PAPER}
EACH = [(name, settings) for settings in ROWS for name in ROWS[settings]]


def mean_size(w: Array, per: str) -> Array:
    return np.abs(w).mean(axis=1 if per == "channel" else None, keepdims=True)


@dataclass
class Oracle:
    """The row on one weight matrix: what the network sees and what multiplies the gradient."""

    row: Row
    initial: Array

    def at(self, w: Array, t: int) -> tuple[Array, Array]:
        """The quantized weight w_t and B at step t."""
        row = self.row
        units = {
            "raw": np.ones((1, 1)),
            "current": mean_size(w, row.per),
            "initial": mean_size(self.initial, "layer"),
        }
        unit = units[row.unit]
        strength = row.schedule(t)
        if row.by_rate:
            strength = float(RATE * strength / unit.item())
        f, b = row.F(w / unit, strength), row.B(w / unit, strength)
        f = sign(f) if t >= row.soft else f
        axis = 1 if row.per == "channel" else None
        scales = {
            "none": np.ones((1, 1)),
            "mean": mean_size(w, row.per),
            "ls": (w * f).sum(axis=axis, keepdims=True) / (f * f).sum(axis=axis, keepdims=True),
            "unit": unit,
        }
        return scales[row.scale] * f, b


def loss_gradient(v: Array, x: Array, y: Array) -> Array:
    return (x @ v.T - y).T @ x


def descend(rate: float = RATE) -> Step:
    return lambda w, g: w - rate * g


def momentum(rate: float = RATE, beta: float = 0.9) -> Step:
    """PyTorch's SGD: the buffer starts at the first gradient."""
    buffer: list[Array] = []

    def step(w: Array, g: Array) -> Array:
        buffer[:] = [beta * buffer[0] + g] if buffer else [g.copy()]
        return w - rate * buffer[0]

    return step


def adam(rate: float = RATE, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0) -> Step:
    """Kingma and Ba's algorithm 1; ``decay`` is the decoupled one of AdamW, on the start point."""
    state = {"t": 0, "m": 0.0, "v": 0.0}

    def step(w: Array, g: Array) -> Array:
        state["t"] += 1
        state["m"] = betas[0] * state["m"] + (1 - betas[0]) * g
        state["v"] = betas[1] * state["v"] + (1 - betas[1]) * g**2
        m = state["m"] / (1 - betas[0] ** state["t"])
        v = state["v"] / (1 - betas[1] ** state["t"])
        return w * (1 - rate * decay) - rate * m / (np.sqrt(v) + 1e-8)

    return step


def run_oracle(row: Row, w: Array, x: Array, y: Array, step: Step) -> tuple[list[Array], Oracle]:
    """The latent weight after every step: spec section 4, line by line."""
    oracle, latent, history = Oracle(row, w.copy()), w.copy(), []
    for t in range(STEPS):
        quantized, b = oracle.at(latent, t)
        if row.rule == "PC++":
            latent = step(latent, b * loss_gradient(quantized, x[t], y[t]))
        elif row.rule == "PQ":
            latent = step(quantized, loss_gradient(quantized, x[t], y[t]))
        elif row.rule == "rPC":
            latent = step(quantized, loss_gradient(latent, x[t], y[t]))
        else:
            latent = step(latent, loss_gradient(latent, x[t], y[t]))
        history.append(latent)
    return history, oracle


# The library's side ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    w: Array
    x: Array
    y: Array


@pytest.fixture(params=[0.02, 0.3, 1.5], ids=lambda size: f"weights of {size}")
def problem(request: pytest.FixtureRequest) -> Problem:
    return make_problem(request.param)


def make_problem(size: float) -> Problem:
    """Twenty batches of four samples, and initial weights of a given size."""
    random = np.random.default_rng(7)
    return Problem(
        size * random.standard_normal((OUTPUTS, INPUTS)),
        0.5 * random.standard_normal((STEPS, 4, INPUTS)),
        random.standard_normal((STEPS, 4, OUTPUTS)),
    )


def layer(problem: Problem) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(problem.w))
    return model


def binarized(problem: Problem, method: pb.Method) -> nn.Sequential:
    """The layer with its strength in float64 too: the dynamics amplify a rounded one."""
    model = layer(problem)
    pb.binarize(model, method, only="*")
    return model.double()


def train(model: nn.Sequential, optimizer: torch.optim.Optimizer, problem: Problem) -> list[Array]:
    """The latent weight after every step."""
    history = []
    for x, y in zip(torch.from_numpy(problem.x), torch.from_numpy(problem.y), strict=True):
        optimizer.zero_grad()
        loss = 0.5 * (model(x) - y).square().sum()
        loss.backward()
        optimizer.step()
        history.append(model[0].weight.detach().numpy().copy())
    return history


def assert_same(got: list[Array], expected: list[Array]) -> None:
    for t, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        np.testing.assert_allclose(mine, theirs, atol=1e-9, rtol=1e-9, err_msg=f"after step {t}")


def test_the_table_has_every_method() -> None:
    assert set(DEFAULT) | {"react"} == set(pb.METHODS)
    assert set(PAPER) | {"react"} == set(pb.PAPER)


@pytest.mark.parametrize(("name", "settings"), EACH)
def test_twenty_steps_of_sgd_are_the_equation(name: str, settings: str, problem: Problem) -> None:
    model = binarized(problem, pb.method(name, settings))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    handle = pb.attach(model, optimizer, steps=STEPS)
    row = ROWS[settings][name]
    expected, oracle = run_oracle(row, problem.w, problem.x, problem.y, descend())
    assert_same(train(model, optimizer, problem), expected)
    assert handle.step == STEPS
    # What evaluation sees: the quantized weight (at the schedule's end), whatever the rule.
    final, _ = oracle.at(expected[-1], STEPS - 1)
    seen = model.eval()(torch.eye(INPUTS, dtype=torch.float64)).T.detach().numpy()
    np.testing.assert_allclose(seen, final, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ["bnn++", "bc", "pq", "rpc"])
@pytest.mark.parametrize("settings", ["default", "paper"])
@pytest.mark.parametrize("kind", ["momentum", "adam", "adamw"])
def test_another_optimizer_gets_the_same_gradient(
    name: str, settings: str, kind: str, problem: Problem
) -> None:
    model = binarized(problem, pb.method(name, settings))
    optimizer, step = {
        "momentum": (
            torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9),
            momentum(),
        ),
        "adam": (torch.optim.Adam(model.parameters(), lr=RATE), adam()),
        "adamw": (
            torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1),
            adam(decay=0.1),
        ),
    }[kind]
    pb.attach(model, optimizer, steps=STEPS)
    expected, _ = run_oracle(ROWS[settings][name], problem.w, problem.x, problem.y, step)
    assert_same(train(model, optimizer, problem), expected)


def train_by_closure(
    model: nn.Module, optimizer: torch.optim.Optimizer, problem: Problem, named: bool
) -> list[Array]:
    """The latent weight after every step, where the optimizer evaluates the loss itself."""
    history = []
    for x, y in zip(problem.x, problem.y, strict=True):

        def closure(x: Array = x, y: Array = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = 0.5 * (model(torch.from_numpy(x)) - torch.from_numpy(y)).square().sum()
            loss.backward()
            return loss

        loss = optimizer.step(closure=closure) if named else optimizer.step(closure)
        assert loss.requires_grad
        history.append(model[0].weight.detach().numpy().copy())
    return history


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by place"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize(("name", "settings"), EACH)
def test_a_closure_gives_the_same_steps(
    name: str, settings: str, kind: str, named: bool, problem: Problem
) -> None:
    """The loss is evaluated at the weights before the step, wherever the step then starts."""
    model = binarized(problem, pb.method(name, settings))
    optimizer, step = {
        "sgd": (torch.optim.SGD(model.parameters(), lr=RATE), descend()),
        "adam": (torch.optim.Adam(model.parameters(), lr=RATE), adam()),
    }[kind]
    handle = pb.attach(model, optimizer, steps=STEPS)
    expected, _ = run_oracle(ROWS[settings][name], problem.w, problem.x, problem.y, step)
    assert_same(train_by_closure(model, optimizer, problem, named), expected)
    assert handle.step == STEPS


@pytest.mark.parametrize("name", list(DEFAULT))
def test_a_second_evaluation_in_one_step_is_refused_where_the_step_starts_elsewhere(
    name: str, problem: Problem
) -> None:
    """L-BFGS looks for its step by many gradients; PQ and rPC have one, at w_t or w*_t."""
    model = binarized(problem, pb.method(name))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=4)
    handle = pb.attach(model, optimizer, steps=STEPS)
    if name not in ("pq", "rpc"):
        train_by_closure(model, optimizer, problem, named=False)
        assert handle.step == STEPS
        return
    with pytest.raises(ValueError, match=r"^LBFGS evaluated its closure twice in one step, and"):
        train_by_closure(model, optimizer, problem, named=False)
    np.testing.assert_array_equal(model[0].weight.detach().numpy(), problem.w)
    assert handle.step == 0


def test_the_threshold_of_a_proximal_step_follows_the_rate_of_that_step(problem: Problem) -> None:
    """w_{t+1} = prox with threshold eta_t lambda_{t+1}, also while a scheduler lowers eta."""
    model = binarized(problem, pb.method("pq"))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    pb.attach(model, optimizer, steps=STEPS)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    unit, latent = float(np.abs(problem.w).mean()), problem.w
    rate = RATE
    for t, (x, y) in enumerate(zip(problem.x, problem.y, strict=True)):
        threshold = rate * 0.3 * t / (STEPS - 1) / unit
        quantized = unit * tied(latent / unit, threshold)
        rate = RATE * 0.8**t
        latent = quantized - rate * loss_gradient(quantized, x, y)
        optimizer.zero_grad()
        (0.5 * (model(torch.from_numpy(x)) - torch.from_numpy(y)).square().sum()).backward()
        optimizer.step()
        scheduler.step()
        np.testing.assert_allclose(model[0].weight.detach().numpy(), latent, atol=1e-9)


@pytest.mark.parametrize("name", ["bc", "bnn", "pq", "rpc"])
def test_without_a_scale_latents_are_clipped_to_one(name: str) -> None:
    """Spec section 6: clamp to [-1, 1] for BC, BNN, PQ and rPC when unscaled, none when scaled."""
    for scale, bounded in [("none", True), (None, False)]:
        model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False)).double()
        pb.binarize(model, pb.method(name, scale=scale), only="*")
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        pb.attach(model, optimizer, steps=STEPS)
        model[0].weight.grad = torch.full_like(model[0].weight, -3.0)
        optimizer.step()
        assert (model[0].weight.abs().max().item() <= 1) == bounded


# ReAct: a learned shift --------------------------------------------------------------------------


@pytest.mark.parametrize("settings", ["default", "paper"])
def test_react_learns_its_shift(settings: str, problem: Problem) -> None:
    """F = sign(w - a), B = 1[|w - a| <= 1], dL/da = -sum B g; the scale is mean|w|."""
    model = binarized(problem, pb.method("react", settings))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    pb.attach(model, optimizer, steps=STEPS)
    per = {"default": "channel", "paper": "layer"}[settings]
    w, a = problem.w.copy(), np.zeros((OUTPUTS, 1))
    shift = model[0].binary.weight_quantizer.shift
    assert shift.shape == (OUTPUTS, 1)
    for t, (x, y) in enumerate(zip(problem.x, problem.y, strict=True)):
        effective = mean_size(w, per) * sign(w - a)
        b = inside(w - a, 1)
        g = b * loss_gradient(effective, x, y)
        optimizer.zero_grad()
        (0.5 * (model(torch.from_numpy(x)) - torch.from_numpy(y)).square().sum()).backward()
        np.testing.assert_allclose(shift.grad.numpy(), -g.sum(1, keepdims=True), atol=1e-9)
        optimizer.step()
        w, a = w - RATE * g, a + RATE * g.sum(1, keepdims=True)
        message = f"after step {t}"
        np.testing.assert_allclose(model[0].weight.detach().numpy(), w, atol=1e-9, err_msg=message)
        np.testing.assert_allclose(shift.detach().numpy(), a, atol=1e-9, err_msg=message)


def test_react_learns_the_shift_of_its_input() -> None:
    """In BWA the input is sign(x - c), c per channel, with the same backward map."""
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False)).double()
    pb.binarize(model, "react", "BWA", only="*")
    quantizer = model[0].binary.input_quantizer
    with torch.no_grad():
        quantizer.shift.copy_(torch.linspace(-0.5, 0.5, INPUTS).reshape(quantizer.shift.shape))
    c = quantizer.shift.detach().numpy().reshape(INPUTS)
    x, y = np.random.default_rng(1).standard_normal((2, 6, INPUTS))[0], np.zeros((6, OUTPUTS))
    w = model[0].weight.detach().numpy()
    effective = mean_size(w, "channel") * sign(w)
    out = sign(x - c) @ effective.T
    leaf = torch.from_numpy(x).requires_grad_()
    got = model(leaf)
    np.testing.assert_allclose(got.detach().numpy(), out, atol=1e-12)
    (0.5 * (got - torch.from_numpy(y)).square().sum()).backward()
    g = inside(x - c, 1) * ((out - y) @ effective)
    np.testing.assert_allclose(leaf.grad.numpy(), g, atol=1e-12)
    np.testing.assert_allclose(quantizer.shift.grad.numpy().reshape(INPUTS), -g.sum(0), atol=1e-12)


# The three conventions for the gradient through the scale, spec section 6 ------------------------


def gradients(
    scale: pb.Scale, pair: str, problem: Problem, task: str = "BW"
) -> tuple[Array, Array]:
    """The gradient of the latent weight after one backward, and at the effective weight."""
    model = layer(problem)
    pb.binarize(
        model, pb.method(pair, scale=scale, unit="one", schedule=pb.Constant(2.0)), task, only="*"
    )
    x, y = torch.from_numpy(problem.x[0]), torch.from_numpy(problem.y[0])
    (0.5 * (model(x) - y).square().sum()).backward()
    seen = x.numpy() if task == "BW" else model[0].binary.input_quantizer(x).detach().numpy()
    effective = model[0].binary.weight_quantizer.proximal(model[0].weight).numpy()
    return model[0].weight.grad.numpy(), loss_gradient(effective, seen, problem.y[0])


PAIRS = {"bc": one, "bnn": inside, "bnn++": swish_slope, "poly+": poly_slope, "ede": ede_slope}
FORWARD = {"bc": hard, "bnn": hard, "bnn++": swish, "poly+": poly, "ede": hard}


@pytest.mark.parametrize("task", ["BW", "BWA"])
@pytest.mark.parametrize("per", ["layer", "channel"])
@pytest.mark.parametrize("kind", ["none", "mean", "least_squares"])
@pytest.mark.parametrize("pair", list(PAIRS))
def test_convention_b_multiplies_by_b_only(
    pair: str, kind: str, per: str, task: str, problem: Problem
) -> None:
    got, g = gradients(pb.Scale(kind, per, "pass"), pair, problem, task)
    np.testing.assert_allclose(got, PAIRS[pair](problem.w, 2.0) * g, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("task", ["BW", "BWA"])
@pytest.mark.parametrize("per", ["layer", "channel"])
@pytest.mark.parametrize("pair", list(PAIRS))
def test_convention_a_multiplies_by_the_scale_too(
    pair: str, per: str, task: str, problem: Problem
) -> None:
    got, g = gradients(pb.Scale("mean", per, "chain"), pair, problem, task)
    expected = mean_size(problem.w, per) * PAIRS[pair](problem.w, 2.0) * g
    np.testing.assert_allclose(got, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("task", ["BW", "BWA"])
@pytest.mark.parametrize("per", ["layer", "channel"])
@pytest.mark.parametrize("pair", list(PAIRS))
def test_the_full_gradient_is_that_of_xnor(
    pair: str, per: str, task: str, problem: Problem
) -> None:
    """s B g + sign(w) mean(F g): through the pair and through mean|w|."""
    got, g = gradients(pb.Scale("mean", per, "full"), pair, problem, task)
    f = FORWARD[pair](problem.w, 2.0)
    axis = 1 if per == "channel" else None
    through_scale = sign(problem.w) * (f * g).mean(axis=axis, keepdims=True)
    expected = mean_size(problem.w, per) * PAIRS[pair](problem.w, 2.0) * g + through_scale
    np.testing.assert_allclose(got, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", ["mean", "least_squares"])
@pytest.mark.parametrize("per", ["layer", "channel"])
@pytest.mark.parametrize("unit", ["one", "initial"])
def test_where_b_is_the_slope_the_full_gradient_is_the_finite_difference(
    unit: str, per: str, kind: str
) -> None:
    problem = make_problem(0.3)
    model = layer(problem)
    scale = pb.Scale(kind, per, "full")
    pb.binarize(
        model, pb.method("bnn++", scale=scale, unit=unit, schedule=pb.Constant(1.5)), only="*"
    )
    x, y = torch.from_numpy(problem.x[0]), torch.from_numpy(problem.y[0])

    def loss() -> torch.Tensor:
        return 0.5 * (model(x) - y).square().sum()

    loss().backward()
    weight, h = model[0].weight, 1e-6 * float(np.abs(problem.w).mean())
    difference = np.zeros_like(problem.w)
    with torch.no_grad():
        for i in np.ndindex(*difference.shape):
            kept = weight[i].item()
            weight[i] = kept + h
            up = loss().item()
            weight[i] = kept - h
            difference[i] = (up - loss().item()) / (2 * h)
            weight[i] = kept
    size = np.abs(difference).max()
    np.testing.assert_allclose(weight.grad.numpy(), difference, atol=1e-5 * size)


@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
def test_a_layer_of_zeros_can_learn(task: str) -> None:
    """Convention (b) does not multiply by the scale, so a scale of 0 must not kill the gradient."""
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False))
    nn.init.zeros_(model[0].weight)
    pb.binarize(model, "bc", task, only="*")
    x = torch.randn(4, INPUTS)
    model(x).sum().backward()
    seen = x if task == "BW" else torch.where(x >= 0, 1.0, -1.0)
    torch.testing.assert_close(model[0].weight.grad, seen.sum(0).expand(OUTPUTS, INPUTS))
