"""From float to binary and back: nothing is lost, nothing is left."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import proxbit as pb
from small_models import (
    ReadsTheWeight,
    assert_unchanged,
    cnn,
    images,
    snapshot,
)


def attention() -> nn.Module:
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu"), 2
    )


@pytest.mark.parametrize("method", list(pb.METHODS))
@pytest.mark.parametrize("task", ["BW", "BWA", "BWAA"])
def test_restore_puts_everything_back(method: str, task: Any) -> None:
    model, x = cnn().eval(), images()
    expected, before = model(x), snapshot(model)
    pb.binarize(model, method, task, relu=nn.Hardtanh)
    assert pb.restore(model) is model
    assert_unchanged(model, before)
    assert torch.equal(model(x), expected)
    assert not [m for m in model.modules() if "_proxbit_undo" in m.__dict__]


@pytest.mark.parametrize("method", ["bnn++", "react"])
@pytest.mark.parametrize("route", ["swap", "parametrize"])
def test_restore_puts_attention_back(method: str, route: str) -> None:
    model, x = attention().eval(), torch.randn(2, 3, 8)
    expected, before = model(x), snapshot(model)
    chosen = "*.self_attn" if route == "parametrize" else None
    pb.binarize(model, method, parametrize=chosen)
    with torch.no_grad():
        assert not torch.equal(model(x), expected)
    pb.restore(model)
    assert not any(parametrize.is_parametrized(m) for m in model.modules())
    assert torch.equal(model(x), expected)
    now = snapshot(model)
    for part in ("types", "buffers", "training"):
        assert now[part] == before[part]
    assert sorted(now["parameters"]) == sorted(before["parameters"])


def test_restore_keeps_the_order_of_the_parameters() -> None:
    """An optimizer's state_dict knows parameters by their order alone."""
    model = ReadsTheWeight()
    names = [name for name, _ in model.named_parameters()]
    pb.binarize(model, "bnn", parametrize="inner")
    pb.restore(model)
    assert [name for name, _ in model.named_parameters()] == names


def test_binarize_and_restore_may_alternate() -> None:
    model, x = ReadsTheWeight().eval(), torch.randn(3, 4)
    expected = model(x)
    for _ in range(3):
        pb.binarize(model, "bnn", parametrize="inner")
        keys = list(model.state_dict())
        model.load_state_dict(model.state_dict())
        pb.restore(model)
        assert sorted(keys) == sorted(model.state_dict())
        assert torch.equal(model(x), expected)


def test_restoring_a_hard_model_keeps_the_hard_weights_and_lets_them_train() -> None:
    model, x = cnn().eval(), images()
    pb.binarize(model, "bnn")
    pb.harden(model)
    hard = {name: value.clone() for name, value in model.state_dict().items()}
    pb.restore(model)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in hard.items())
    assert all(p.requires_grad for p in model.parameters())
    model(x).sum().backward()
    assert model[3].weight.grad is not None


def test_restore_does_not_thaw_what_was_frozen_before() -> None:
    model = cnn()
    model[3].weight.requires_grad_(False)
    with pytest.warns(pb.SettingsWarning, match=r"1 of 2 binary weights are frozen .*3\.weight"):
        pb.binarize(model, "bnn")
    pb.harden(model)
    pb.restore(model)
    assert not model[3].weight.requires_grad
    assert model[7].weight.requires_grad


def test_parameters_stay_the_same_objects() -> None:
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [id(p) for p in model.parameters()]
    pb.binarize(model, "bnn++")
    assert [id(p) for p in model.parameters()] == before
    assert [id(p) for p in pb.latent_parameters(model)] == [
        id(model[3].weight),
        id(model[7].weight),
    ]
    pb.attach(model, optimizer, steps=2)  # an optimizer built before stays valid
