"""Exact weights, the gap to them, and batch-norm statistics that fit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import proxbit as pb
from proxbit.binarization.hardening import Gap
from small_models import (
    BINARY_METHODS,
    assert_unchanged,
    cnn,
    images,
    snapshot,
)

# Hardening ----------------------------------------------------------------------------------------


def assert_hard(model: nn.Module) -> None:
    for weight in pb.binary_weights(model):
        w, scale = weight.latent, weight.quantizer.method.scale
        sizes = w.abs()
        expected = sizes.amax(scale.dims(w), keepdim=True).expand_as(w)
        assert torch.equal(sizes, expected), weight.name
        if scale.kind == "none":
            assert torch.equal(sizes, torch.ones_like(w))
        else:
            assert bool((sizes > 0).all())


@pytest.mark.parametrize("method", BINARY_METHODS)
@pytest.mark.parametrize("scale", ["none", "layer", "channel", "ls"])
@pytest.mark.parametrize("task", ["BW", "BWA"])
def test_hard_weights_are_exactly_plus_or_minus_the_scale(
    method: str, scale: str, task: Any
) -> None:
    model, x = cnn(), images()
    pb.binarize(model, pb.method(method, scale=scale), task, relu=nn.Hardtanh)
    assert pb.harden(model) is model
    assert_hard(model)
    model.eval()
    seen: list[Tensor] = []
    handle = model[3].binary.register_forward_pre_hook(lambda m, args: seen.append(args[1]))
    first = model(x)
    handle.remove()
    assert torch.equal(seen[0], model[3].weight)
    assert torch.equal(model.train().eval()(x), first)


@pytest.mark.parametrize("method", BINARY_METHODS)
def test_the_hard_scale_is_the_least_squares_match_of_the_quantized_weight(method: str) -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 2))
    pb.binarize(model, method)
    pb.set_strength(model, 0.7)
    (weight,) = pb.binary_weights(model)
    q = weight.quantizer.proximal(weight.latent).clone()
    pb.harden(model)
    bits = torch.where(q < 0, -1.0, 1.0)
    dims = weight.quantizer.method.scale.dims(q)
    expected = bits * ((q * bits).sum(dims, keepdim=True) / (bits * bits).sum(dims, keepdim=True))
    torch.testing.assert_close(weight.latent, expected)
    assert torch.equal(weight.latent < 0, q < 0)


def test_hardening_twice_is_fine() -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    pb.harden(model)
    before = snapshot(model)
    assert pb.harden(model) is model
    assert_unchanged(model, before)


def test_hardening_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    pb.gap(model, images())
    pb.harden(model)
    assert capsys.readouterr() == ("", "")


def test_the_gap_is_what_hardening_then_changes() -> None:
    model, x = cnn().eval(), images(16)
    pb.binarize(model, "bnn++")
    before = snapshot(model)
    gap = pb.gap(model, x)
    assert_unchanged(model, before)
    soft_out = model(x).detach()
    soft = {w.name: w.quantizer.proximal(w.latent).clone() for w in pb.binary_weights(model)}
    pb.harden(model)
    hard_out = model(x).detach()
    hard = {w.name: w.latent for w in pb.binary_weights(model)}
    gaps = {n: float((hard[n] - soft[n]).norm() / soft[n].norm()) for n in soft}
    assert gap.method == "BNN++"
    assert gap.layers == pytest.approx(gaps)
    assert gap.mean == pytest.approx(sum(gaps.values()) / 2)
    assert gap.worst == max(gaps, key=gaps.__getitem__)
    assert gap.outputs == pytest.approx(float((hard_out - soft_out).norm() / soft_out.norm()))
    assert gap.agreement == float((hard_out.argmax(1) == soft_out.argmax(1)).float().mean())
    assert pb.gap(model).layers == dict.fromkeys(gaps, 0.0)


def test_the_gap_prints_as_one_line() -> None:
    gap = Gap("BNN++", {"a": 0.1, "b": 0.3}, 0.25, 0.5)
    assert str(gap) == (
        "hardening changes 2 weights (BNN++) by 20 % on average, 30 % at most (b); outputs by "
        "25 %, 50 % of the decisions stay"
    )


def test_a_hard_pair_has_no_gap() -> None:
    model, x = cnn().eval(), images()
    pb.binarize(model, "bc")
    expected, gap = model(x), pb.gap(model, x)
    torch.testing.assert_close(pb.harden(model)(x), expected)
    assert gap.mean < 1e-6 and gap.agreement == 1


def test_hardened_is_a_copy_and_leaves_the_model_soft() -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    before = snapshot(model)
    hard = pb.hardened(model)
    assert_hard(hard)
    assert not hard.training
    assert_unchanged(model, before)
    assert not any(w.quantizer.hard for w in pb.binary_weights(model))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
}


def train_a_little(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, none: bool = True
) -> None:
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=none)
        model(images()).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("task", ["BW", "BWA"])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("method", ["bnn++", "pq", "rpc", "react"])
def test_after_hardening_signs_stay_and_the_rest_trains(
    method: str, name: str, set_to_none: bool, task: Any
) -> None:
    model = cnn()
    pb.binarize(model, method, task, relu=nn.Hardtanh)
    optimizer = OPTIMIZERS[name](model.parameters())
    pb.attach(model, optimizer, steps=10)
    train_a_little(model, optimizer, 3, set_to_none)
    pb.harden(model)
    hard = {w.name for w in pb.binary_weights(model)}
    old = {n: p.detach().clone() for n, p in model.named_parameters()}
    train_a_little(model, optimizer, 3, set_to_none)
    for n, p in model.named_parameters():
        if n in hard:
            assert torch.equal(p, old[n]), n
        elif not n.endswith("weight_quantizer.shift"):  # nothing is left for it to shift
            assert not torch.equal(p, old[n]), n


# Batch-norm statistics ----------------------------------------------------------------------------


def test_recalibrate_is_the_plain_average_over_the_batches() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.Dropout(0.5), nn.Tanh(),
        nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2),
    )  # fmt: skip
    pb.binarize(model, "bnn")
    pb.harden(model)
    train_mode = {m: m.training for m in model.modules()}
    batches = [images(n) for n in (4, 7, 5)]
    assert pb.recalibrate(model, batches) is model

    def statistics(z: Tensor) -> tuple[Tensor, Tensor]:
        return z.mean((0, 2, 3)), z.transpose(0, 1).flatten(1).var(1)

    first, second = [], []
    with torch.no_grad():
        for batch in batches:
            z = model[0](batch)
            first.append(statistics(z))
            norm = model[1]
            z = functional.batch_norm(z, None, None, norm.weight, norm.bias, training=True)
            second.append(statistics(model[4](torch.tanh(z))))  # no dropout
    for norm, seen in ((model[1], first), (model[5], second)):
        torch.testing.assert_close(norm.running_mean, torch.stack([m for m, _ in seen]).mean(0))
        torch.testing.assert_close(norm.running_var, torch.stack([v for _, v in seen]).mean(0))
    assert (model[1].momentum, model[5].momentum) == (0.3, 0.1)
    assert {m: m.training for m in model.modules()} == train_mode


def test_recalibrate_takes_what_a_loader_yields() -> None:
    models = [cnn(), cnn(), cnn()]
    for model in models:
        model.load_state_dict(models[0].state_dict())
    x = [images(), images()]
    labels = torch.zeros(5)
    pb.recalibrate(models[0], x)
    pb.recalibrate(models[1], [(batch, labels) for batch in x])
    pb.recalibrate(models[2], ({"input": batch} for batch in x))
    for model in models[1:]:
        for name, value in model.state_dict().items():
            assert torch.equal(value, models[0].state_dict()[name])


@pytest.mark.parametrize("batches", [[], [images(), torch.randn(3, 2, 4, 4)]])
def test_recalibrate_restores_the_statistics_if_it_fails(batches: list[Tensor]) -> None:
    model = cnn()
    model(images())
    model[4].eval()
    before = snapshot(model)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        pb.recalibrate(model, batches)
    if not batches:
        assert "no batches" in str(caught.value)
    assert_unchanged(model, before)
    assert model[1].momentum == 0.1
