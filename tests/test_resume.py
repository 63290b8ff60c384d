"""A run that is stopped, saved and resumed is the run that was never stopped, bit for bit."""

import copy
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb

STEPS = 20
ALL = [(method, task) for method in pb.METHODS for task in ("BW", "BWA")]


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 8), nn.Tanh(), nn.Linear(8, 3),
    )  # fmt: skip


class Attention(nn.Module):
    """PyTorch's own attention, which reads its weights without calling a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.squeeze(1)
        return self.head(self.norm(x + self.attention(x, x, x)[0]).mean(1))


BUILDS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "swap": (cnn, {}),
    "parametrize": (cnn, {"parametrize": ["3", "7"]}),
    "attention": (Attention, {}),
    "parametrized attention": (Attention, {"parametrize": "attention"}),
}


def data() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 1, 4, 4, generator=generator), torch.randint(3, (6,), generator=generator))
        for _ in range(STEPS)
    ]


class Run:
    """A model, its optimizer and its attachment, as a script would build them anew."""

    def __init__(self, method: str, task: Any, seed: int, build: str = "swap") -> None:
        torch.manual_seed(seed)
        make, arguments = BUILDS[build]
        self.model = make()
        pb.binarize(self.model, method, task, relu=nn.Hardtanh, **arguments)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.handle = pb.attach(self.model, self.optimizer, steps=STEPS)

    def train(self, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
        losses = []
        for x, y in batches:
            self.optimizer.zero_grad()
            loss = functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def save(self) -> io.BytesIO:
        file = io.BytesIO()
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> None:
        state = torch.load(file, weights_only=True)
        self.model.load_state_dict(state["model"], strict=True)
        self.optimizer.load_state_dict(state["optimizer"])


def assert_equal_runs(run: Run, other: Run) -> None:
    ours, theirs = run.model.state_dict(), other.model.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    assert run.handle.state_dict() == other.handle.state_dict()
    x, _ = data()[0]
    assert torch.equal(run.model.eval()(x), other.model.eval()(x))
    run.model.train()
    other.model.train()


@pytest.mark.parametrize(("method", "task"), ALL)
def test_a_resumed_run_equals_one_that_was_never_stopped(method: str, task: str) -> None:
    whole, first, second = (Run(method, task, seed) for seed in (0, 0, 7))
    losses = whole.train(data())
    early = first.train(data()[:10])
    second.load(first.save())
    assert second.handle.step == 10
    assert early + second.train(data()[10:]) == losses
    assert_equal_runs(whole, second)
    assert second.handle.step == STEPS


@pytest.mark.parametrize("build", ["parametrize", "attention", "parametrized attention"])
@pytest.mark.parametrize("method", ["bnn++", "pq", "rpc", "react", "ptb"])
def test_so_does_one_of_parametrized_weights_and_of_attention(method: str, build: str) -> None:
    whole, first, second = (Run(method, "BW", seed, build) for seed in (0, 0, 7))
    losses = whole.train(data())
    early = first.train(data()[:10])
    second.load(first.save())
    assert early + second.train(data()[10:]) == losses
    assert_equal_runs(whole, second)


@pytest.mark.parametrize("method", ["bnn++", "pq"])
def test_it_does_not_matter_whether_one_attaches_before_or_after_loading(method: str) -> None:
    whole, first = Run(method, "BW", 0), Run(method, "BW", 0)
    whole.train(data())
    first.train(data()[:10])
    second = Run(method, "BW", 7)
    second.handle.remove()
    second.load(first.save())
    second.handle = pb.attach(second.model, second.optimizer, steps=STEPS)
    second.train(data()[10:])
    assert_equal_runs(whole, second)


@pytest.mark.parametrize("method", ["bnn++", "poly+", "pq", "react"])
@pytest.mark.parametrize("build", ["swap", "attention"])
def test_tensors_in_safetensors_with_numbers_in_json_resume_exactly_too(
    method: str, build: str
) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    whole, first, second = (Run(method, "BWA", seed, build) for seed in (0, 0, 7))
    whole.train(data())
    first.train(data()[:10])
    tensors = safetensors.save(dict(first.model.state_dict()))
    numbers = json.dumps(first.handle.state_dict())
    second.model.load_state_dict(safetensors.load(tensors), strict=True)
    second.handle.load_state_dict(json.loads(numbers))
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert second.handle.step == 10
    second.train(data()[10:])
    assert_equal_runs(whole, second)


# Keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", list(BUILDS))
@pytest.mark.parametrize("method", list(pb.METHODS))
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
def test_the_keys_are_those_of_the_float_model(method: str, task: Any, build: str) -> None:
    make, arguments = BUILDS[build]
    floats, model = make().state_dict(), make()
    pb.binarize(model, method, task, relu=nn.Hardtanh, **arguments)
    extra = set(model.state_dict()) - set(floats)
    assert set(floats) <= set(model.state_dict())
    if method == "react":
        assert extra
        assert all(name.endswith(".shift") for name in extra)
    else:
        assert not extra


@pytest.mark.parametrize("build", list(BUILDS))
@pytest.mark.parametrize("method", list(pb.METHODS))
def test_a_float_checkpoint_loads_strictly_and_back(method: str, build: str) -> None:
    make, arguments = BUILDS[build]
    source, model, back = make(), make(), make()
    pb.binarize(model, method, "BWA", relu=nn.Hardtanh, **arguments)
    model.load_state_dict(source.state_dict(), strict=True)
    state = {k: v for k, v in model.state_dict().items() if not k.endswith(".shift")}
    back.load_state_dict(state if method == "react" else model.state_dict(), strict=True)
    for name, value in source.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name


@pytest.mark.parametrize("build", list(BUILDS))
def test_strict_loading_still_refuses_what_does_not_fit(build: str) -> None:
    make, arguments = BUILDS[build]
    model, floats = make(), make().state_dict()
    pb.binarize(model, "bnn++", **arguments)
    key = next(name for name in floats if name in ("3.weight", "attention.in_proj_weight"))
    missing = {name: value for name, value in floats.items() if name != key}
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(missing)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict(floats | {"ghost": torch.ones(1)})
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict(floats | {key: torch.ones(2, 2)})


@pytest.mark.parametrize("method", list(pb.METHODS))
def test_loading_a_float_checkpoint_then_binarizing_equals_the_reverse(method: str) -> None:
    """The unit is mean|w| of the weights that training starts from, however they got there."""
    source = cnn()
    with torch.no_grad():
        for p in source.parameters():
            p.mul_(3)
    before, after = cnn(), cnn()
    before.load_state_dict(source.state_dict())
    pb.binarize(before, method)
    pb.binarize(after, method)
    after.load_state_dict(source.state_dict())
    x, _ = data()[0]
    assert torch.equal(before.eval()(x), after.eval()(x))


@pytest.mark.parametrize("method", ["bnn++", "pq", "react"])
def test_a_model_binarized_on_the_meta_device_starts_from_what_is_loaded(method: str) -> None:
    source = cnn()
    with torch.device("meta"):
        model = cnn()
    pb.binarize(model, method)
    model.to_empty(device="cpu")
    model.load_state_dict(source.state_dict())
    if method == "react":
        for weight in pb.binary_weights(model):
            nn.init.zeros_(weight.quantizer.shift)  # no checkpoint holds it, to_empty erased it
    pb.binarize(source, method)
    for each in (model, source):
        pb.attach(each, torch.optim.SGD(each.parameters(), lr=0.1), steps=STEPS)
    x, _ = data()[0]
    assert torch.equal(model.eval()(x), source.eval()(x))


def test_loading_does_not_change_the_checkpoint() -> None:
    for build, arguments in BUILDS.values():
        state = build().state_dict()
        keys = list(state)
        model = build()
        pb.binarize(model, "bnn++", **arguments)
        model.load_state_dict(state)
        assert list(state) == keys


# Hard checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "method"),
    [("swap", method) for method in pb.METHODS if pb.METHODS[method].binary]
    + [(build, method) for build in list(BUILDS)[1:] for method in ("bnn++", "pq", "react")],
)
@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_a_hard_checkpoint_loads_into_a_fresh_model_and_stays_hard(
    method: str, task: str, build: str
) -> None:
    run, fresh = Run(method, task, 0, build), Run(method, task, 7, build)
    run.train(data()[:3])
    pb.harden(run.model)
    fresh.load(run.save())
    assert all(w.quantizer.hard for w in pb.binary_weights(fresh.model))
    assert_equal_runs(run, fresh)
    signs = [w.latent.clone() for w in pb.binary_weights(fresh.model)]
    fresh.train(data()[:3])
    for weight, old in zip(pb.binary_weights(fresh.model), signs, strict=True):
        assert torch.equal(weight.latent, old), weight.name


@pytest.mark.parametrize("route", ["state_dict", "handle"])
def test_a_hard_checkpoint_stops_the_signs_of_a_model_in_training(route: str) -> None:
    """Left-over gradients, momentum and weight decay must not move what was loaded as hard."""
    run, other = Run("bnn++", "BW", 0), Run("bnn++", "BW", 7)
    other.handle.remove()
    other.optimizer = torch.optim.SGD(other.model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    other.handle = pb.attach(other.model, other.optimizer, steps=STEPS)
    other.train(data()[:3])
    pb.harden(run.model)
    if route == "state_dict":
        other.model.load_state_dict(run.model.state_dict())
    else:
        other.model.load_state_dict(dict(run.model.state_dict()))  # tensors only
        other.handle.load_state_dict(run.handle.state_dict())
    signs = [w.latent.clone() for w in pb.binary_weights(other.model)]
    for x, y in data()[:3]:
        other.optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(other.model(x), y).backward()
        other.optimizer.step()
    for weight, old in zip(pb.binary_weights(other.model), signs, strict=True):
        assert torch.equal(weight.latent, old), weight.name


@pytest.mark.parametrize("route", ["state_dict", "handle"])
def test_a_soft_checkpoint_lets_a_hard_model_train_again(route: str) -> None:
    run, hard = Run("bnn++", "BW", 0), Run("bnn++", "BW", 7)
    run.train(data()[:10])
    hard.train(data()[:3])
    pb.harden(hard.model)
    hard.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))  # it shares
    if route == "state_dict":
        hard.model.load_state_dict(run.model.state_dict())
    else:
        hard.model.load_state_dict(dict(run.model.state_dict()))
        hard.handle.load_state_dict(run.handle.state_dict())
    assert not any(w.quantizer.hard for w in pb.binary_weights(hard.model))
    run.train(data()[10:])
    hard.train(data()[10:])
    assert_equal_runs(run, hard)


def test_beside_the_tensors_a_checkpoint_holds_plain_numbers_only() -> None:
    """The metadata holds floats, ints and booleans: nothing that weights_only would refuse."""
    run = Run("pq", "BWA", 0)
    run.train(data()[:2])
    metadata = run.model.state_dict()._metadata
    found = [entry["proxbit"] for entry in metadata.values() if "proxbit" in entry]
    assert len(found) == len(run.handle.quantizers)
    assert json.loads(json.dumps(found)) == found
