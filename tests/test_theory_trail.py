"""Following a run: what is refused, inside which loops it works, what it reports."""

import copy
import json
import pickle
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import proxbit as pb
from binarizing import binarize
from proxbit.theory import follow

pytestmark = pytest.mark.filterwarnings("ignore::proxbit.SettingsWarning")
ROOT = Path(__file__).resolve().parents[1]
RAW = {"scale": "none", "unit": "one"}


def linear(method):
    """One binary layer with a float bias."""
    model = nn.Sequential(nn.Linear(5, 2)).double()
    strength = {"pc": 0.3}.get(method, 4.0)
    binarize(model, pb.method(method, schedule=pb.Constant(strength)), only="*", **RAW)
    return model


def data():
    return torch.randn(12, 5, dtype=torch.float64), torch.randn(12, 2, dtype=torch.float64)


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def plain(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr)


def train(model, optimizer, x, y, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


# What is refused ---------------------------------------------------------------------------------


def _sgd(model, **more):
    return torch.optim.SGD(model.parameters(), lr=0.1, **more)


REFUSED = {
    "adam": ("bnn++", RAW, lambda m: torch.optim.Adam(m.parameters()), "this is Adam"),
    "momentum": ("bnn++", RAW, partial(_sgd, momentum=0.9), "SGD with momentum=0.9"),
    "lr_schedule": ("bnn++", RAW, partial(_sgd, weight_decay=1e-4), "SGD with weight_decay=0.0001"),
    "maximize": ("bnn++", RAW, partial(_sgd, maximize=True), "SGD with maximize=True"),
    "scale": ("bnn++", {"scale": "channel"}, _sgd, "the scale 'mean per channel' and the unit"),
    "unit": ("pc", {"scale": "none", "unit": "current"}, _sgd, "the unit 'current'"),
    "unit alone": ("bnn++", {"scale": "none", "unit": "initial"}, _sgd, "the unit 'initial'"),
    "rule": ("pq", {}, _sgd, "the theorem is about the rule PC"),
    "shift": ("react", {"scale": "none"}, _sgd, "learns a shift"),
    "inputs": ("bnn", RAW | {"task": "BWA"}, _sgd, "binarize with task='BW'"),
    "pair": ("bnn+", RAW, _sgd, "BNN\\+ has no objective to recover"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_run_that_the_theorem_says_nothing_about_is_refused(key):
    method, form, optimizer, message = REFUSED[key]
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    binarize(model, method, only="*", **form)
    with pytest.raises(ValueError, match=message):
        follow(model, optimizer(model))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_that_is_not_binary_or_hard_is_refused():
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="not binarized"):
        follow(model, plain(model))
    model = linear("bc")
    optimizer = plain(model)
    pb.harden(model)
    with pytest.raises(ValueError, match=r"'0\.weight' is hard"):
        follow(model, optimizer)


def test_an_optimizer_of_other_weights_is_refused():
    model, other = linear("bc"), nn.Linear(2, 2).double()
    with pytest.raises(ValueError, match="not the model's"):
        follow(model, torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1))
    with pytest.raises(ValueError, match="none of the latent parameters"):
        follow(model, torch.optim.SGD([model[0].bias], lr=0.1))


def test_a_reference_must_fit():
    model = linear("bc")
    state = model.state_dict()
    with pytest.raises(ValueError, match=r"the reference lacks '0\.bias'"):
        follow(model, plain(model), {"0.weight": state["0.weight"]})
    with pytest.raises(ValueError, match=r"has \(2,\) for '0\.weight', and the model \(2, 5\)"):
        follow(model, plain(model), state | {"0.weight": torch.zeros(2)})


# Inside any loop ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bc", "bnn++"])
def test_following_changes_nothing_and_leaves_nothing(method):
    (x, y), ends = data(), []
    for watched in (False, True):
        torch.manual_seed(5)
        model = linear(method)
        optimizer = plain(model)
        trail = follow(model, optimizer) if watched else None
        train(model, optimizer, x, y, 6)
        ends.append(model[0].weight.detach().clone())
    assert torch.equal(*ends)
    trail.stop()
    assert not any(module._forward_hooks for module in model.modules())
    train(model, optimizer, x, y, 2)
    assert len(trail.records) == 6 and not trail.ended


def test_a_closure_and_gathered_gradients_are_followed():
    model, (x, y) = linear("bnn++"), data()
    optimizer = plain(model)
    trail = follow(model, optimizer)

    def closure():
        optimizer.zero_grad()
        for half in (slice(0, 6), slice(6, 12)):
            loss_of(model, x[half], y[half]).backward()
        return loss_of(model, x, y)

    for _ in range(4):
        optimizer.step(closure)
    assert len(trail.records) == 4 and trail.holds and trail.records[-1].left != 0


def test_gradients_that_are_thrown_away_are_not_counted():
    model, (x, y) = linear("bnn++"), data()
    optimizer = plain(model)
    trail = follow(model, optimizer)
    for _ in range(4):
        loss_of(model, 9 * x, y).backward()
        train(model, optimizer, x, y, 1)
    assert trail.holds


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0]


class Direct(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return x @ self.inner.weight.T + self.inner.bias


@pytest.mark.parametrize(
    ("make", "form"),
    [(Tied, {}), (Attention, {}), (Direct, {"parametrize": "inner"})],
    ids=["tied", "attention", "parametrized"],
)
def test_every_kind_of_binary_weight_is_followed_once(make, form):
    model = make().double()
    binarize(model, pb.method("bnn++", schedule=pb.Constant(4.0)), only="*", **RAW, **form)
    optimizer = plain(model, 0.5)
    trail = follow(model, optimizer, model.state_dict())
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    for _ in range(8):
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
    assert trail.holds, str(trail)
    assert abs(trail.records[-1].left) > 1e-6


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_of_a_followed_model_is_not_followed(how):
    model, (x, y) = linear("bnn++"), data()
    optimizer = plain(model)
    trail = follow(model, optimizer)
    twin = how(model)
    for _ in range(3):
        loss_of(twin, x, y).backward()
        train(model, optimizer, x, y, 1)
    assert len(trail.records) == 3 and trail.holds
    listeners = [hook for m in twin.modules() for hook in m._forward_hooks.values()]
    assert [hook.taken(()).shape for hook in listeners] == [()], "a copy's listener heard something"


# Reports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fp", "pc", "bnn++"])
def test_a_trail_prints_ten_rows_and_is_strict_json_even_if_the_run_explodes(method):
    model, (x, y) = linear(method), data()
    optimizer = plain(model, lr=1e12)
    trail = follow(model, optimizer)
    train(model, optimizer, x, y, 40)
    text = str(trail)
    assert text.startswith("40 steps:") and text.splitlines()[2].split()[:2] == ["step", "eta"]
    assert len(text.splitlines()) <= 13 and max(map(len, text.splitlines())) <= 100
    stored = json.loads(json.dumps(trail.to_dict(), allow_nan=False))
    assert [record["step"] for record in stored["records"]] == list(range(1, 41))
    assert not stored["records"][-1]["holds"] and stored["records"][-1]["left"] is None


def test_the_snippets_of_the_page_run(capsys):
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert snippets
    for code in snippets:
        exec(code, {})
    assert "both sides are equal after every one" in capsys.readouterr().out
