"""Names, and mistakes: one clear error, and nothing changed."""

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import proxbit as pb
from binarizing import binarize
from small_models import (
    assert_unchanged,
    cnn,
    images,
    snapshot,
)

# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("bnn_plus_plus", "BNN++"), ("BNN++", "BNN++"), ("Bnn Plus Plus", "BNN++"),
        ("bnn-plus", "BNN+"), ("BiReal", "Bi-Real"), ("bi_real", "Bi-Real"), ("RBNN", "R-BNN"),
        ("BinaryConnect", "BC"), ("prox_connect", "PC"), ("ProxQuant", "PQ"), ("rPC", "rPC"),
        ("ReActNet", "ReAct"), ("poly plus", "Poly+"), ("EDE+", "EDE+"), ("float", "FP"),
    ],
)  # fmt: skip
def test_names_are_forgiving(given: str, name: str) -> None:
    assert pb.method(given).name == name
    assert pb.binarize(cnn(), given).method == name


def test_a_method_and_a_bare_pair_are_methods_too() -> None:
    assert pb.binarize(cnn(), pb.METHODS["bc"]).method == "BC"
    assert pb.binarize(cnn(), pb.bi_real).method == "Bi-Real"
    own = pb.Pair(lambda w, s: torch.tanh(s * w), lambda w, s: s / torch.cosh(s * w) ** 2)
    model = cnn()
    assert pb.binarize(model, pb.method(own, schedule=pb.Linear(50, 500))).method == "custom"
    model(images()).sum().backward()
    assert all(p.grad is not None for p in pb.latent_parameters(model))


# Refusals: one clear error, and nothing changed ---------------------------------------------------


def spoiled(value: float) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = cnn()
        with torch.no_grad():
            model[3].weight[0, 0, 0, 0] = value
        return model

    return build


@pytest.mark.parametrize(
    ("build", "arguments", "error", "words"),
    [
        (cnn, {"method": "bnn+++"}, ValueError, ["'bnn+++'", "known:", "bnn++"]),
        (cnn, {"method": "bbn"}, ValueError, ["'bbn'", "did you mean 'bnn'"]),
        (cnn, {"method": 3}, TypeError, ["not int", "bnn++"]),
        (cnn, {"method": None}, TypeError, ["NoneType"]),
        (cnn, {"task": "BWAAA"}, ValueError, ["'BWAAA'", "BW, BWA, BWAA"]),
        (cnn, {"scale": "chanel"}, ValueError, ["'chanel'", "did you mean 'channel'"]),
        (cnn, {"unit": "curent"}, ValueError, ["'curent'", "did you mean 'current'"]),
        (cnn, {"settings": "papers"}, ValueError, ["'papers'", "did you mean 'paper'"]),
        (cnn, {"pad_value": 2}, ValueError, ["1, -1 or 0", "not 2"]),
        (cnn, {"pad_value": math.nan}, ValueError, ["1, -1 or 0", "nan"]),
        (cnn, {"task": "BWAA", "bits": 1}, ValueError, ["2 to 24 bits", "not 1"]),
        (cnn, {"task": "BWAA", "bits": 8.5}, ValueError, ["2 to 24 bits", "8.5"]),
        (cnn, {"task": "BWAA", "k": 0}, ValueError, ["positive", "not 0"]),
        (cnn, {"task": "BWAA", "k": math.nan}, ValueError, ["positive", "nan"]),
        (cnn, {"schedule": 30.0}, (TypeError, ValueError), ["schedule", "30.0"]),
        (cnn, {"schedule": pb.Logarithmic(0, 1)}, ValueError, ["positive"]),
        (cnn, {"schedule": pb.Constant(math.nan)}, ValueError, ["strength", "nan"]),
        (cnn, {"schedule": pb.Linear(1, -1)}, ValueError, ["strength", "-1"]),
        (cnn, {"rule": "PQ"}, TypeError, ["rule", "PQ"]),
        (cnn, {"task": "BWA", "relu": nn.Hardtanh()}, TypeError, ["relu", "Hardtanh"]),
        (cnn, {"task": "BWA", "relu": "hardtanh"}, TypeError, ["relu", "hardtanh"]),
        (cnn, {"only": []}, ValueError, ["no layer", "not in only="]),
        (cnn, {"skip": "*"}, ValueError, ["no layer", "in skip="]),
        (spoiled(math.nan), {}, ValueError, ["'3.weight'", "NaN or infinite"]),
        (spoiled(math.inf), {}, ValueError, ["'3.weight'", "NaN or infinite"]),
        (spoiled(-math.inf), {}, ValueError, ["'3.weight'", "NaN or infinite"]),
        (lambda: nn.Sequential(nn.ReLU()), {}, ValueError, ["no layer", "no weights"]),
        (lambda: nn.Sequential(nn.BatchNorm2d(3)), {}, ValueError, ["no layer"]),
        (lambda: nn.Sequential(nn.LSTM(3, 3)), {}, ValueError, ["no layer", "LSTM"]),
        (lambda: nn.Sequential(nn.Linear(3, 3)), {}, ValueError,
         ["no layer", "last classifier", "only='*'"]),
    ],
)  # fmt: skip
def test_a_bad_argument_is_one_clear_error_and_changes_nothing(
    build: Callable[[], nn.Module], arguments: dict[str, Any], error: Any, words: list[str]
) -> None:
    model = build()
    before = snapshot(model)
    with pytest.raises(error) as caught:
        binarize(model, **arguments)
    assert_unchanged(model, before)
    for word in words:
        assert word in str(caught.value)


def test_binarize_takes_a_module_only() -> None:
    with pytest.raises(TypeError, match="not dict"):
        pb.binarize({"weight": torch.ones(3)})  # type: ignore[arg-type]


def test_binarizing_twice_is_refused() -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"binarized already: call pb\.restore"):
        pb.binarize(model, "bc")
    assert_unchanged(model, before)


@pytest.mark.parametrize(
    "call",
    [
        pb.restore,
        pb.diagnose,
        lambda model: pb.harden(model),
        lambda model: pb.probe(model, images()),
        lambda model: pb.set_strength(model, 1.0),
        lambda model: pb.attach(model, torch.optim.SGD(model.parameters(), 0.1), steps=3),
    ],
)
def test_what_needs_a_binarized_model_says_so(call: Callable[[nn.Module], object]) -> None:
    model = cnn()
    before = snapshot(model)
    with pytest.raises(ValueError, match="not binarized"):
        call(model)
    assert_unchanged(model, before)


@pytest.mark.parametrize("strength", [-1.0, -1e-9, math.nan, math.inf, -math.inf])
def test_a_strength_must_be_finite_and_not_negative(strength: float) -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    old = [float(m.strength) for m in model.modules() if isinstance(m, pb.nn.Quantizer)]
    with pytest.raises(ValueError, match=re.escape(str(strength))):
        pb.set_strength(model, strength)
    assert [float(m.strength) for m in model.modules() if isinstance(m, pb.nn.Quantizer)] == old


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_an_integer_tensor_is_not_quantized(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=str(dtype)):
        pb.quantize(torch.ones(3, dtype=dtype), 1.0, pb.bnn)


@pytest.mark.parametrize("steps", [0, -5, 2.5, True, "ten", None])
def test_steps_is_a_positive_whole_number(steps: Any) -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    before = snapshot(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises((ValueError, TypeError), match=str(steps)):
        pb.attach(model, optimizer, steps=steps)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert_unchanged(model, before)
    pb.attach(model, optimizer, steps=5)  # the failure left nothing behind


@pytest.mark.parametrize("clip", [0, -1.0, "wide", math.nan])
def test_a_clip_is_a_positive_bound(clip: Any) -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match=str(clip)):
        pb.attach(model, optimizer, steps=3, clip=clip)
    assert not optimizer._optimizer_step_post_hooks


def test_attaching_twice_is_refused() -> None:
    model, other = cnn(), cnn()
    pb.binarize(model, "bnn++")
    pb.binarize(other, "bnn++")
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1)
    handle = pb.attach(model, optimizer, steps=3)
    with pytest.raises(ValueError, match="this optimizer is attached already"):
        pb.attach(model, optimizer, steps=3)
    with pytest.raises(ValueError, match="this model is attached to another optimizer"):
        pb.attach(model, torch.optim.SGD(model.parameters(), 0.1), steps=3)
    assert len(optimizer._optimizer_step_post_hooks) == 1
    handle.remove()
    pb.attach(model, optimizer, steps=3)


def test_a_dropped_optimizer_does_not_block_the_next_one() -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    for taken in range(3):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # a cycle: freed by gc only
        handle = pb.attach(model, optimizer, steps=3)
        optimizer.step()
        scheduler.step()
        assert handle.step == taken + 1  # goes on where the last one was
        del optimizer, scheduler


@pytest.mark.parametrize("method", ["bnn++", "react"])
def test_an_optimizer_without_the_latent_parameters_is_refused(method: str) -> None:
    model = cnn()
    stale = torch.optim.SGD(copy.deepcopy(model).parameters(), 0.1)
    before_binarize = torch.optim.SGD(model.parameters(), 0.1)
    partial = torch.optim.SGD(model[9].parameters(), 0.1)
    pb.binarize(model, method)
    total = 4 if method == "react" else 2
    for optimizer in (stale, partial):
        with pytest.raises(ValueError, match=f"lacks {total} of {total} latent.*'3.weight'"):
            pb.attach(model, optimizer, steps=3)
    if method == "react":  # its shifts were not there yet
        with pytest.raises(ValueError, match=r"lacks 2 of 4 latent.*shift"):
            pb.attach(model, before_binarize, steps=3)
    else:
        pb.attach(model, before_binarize, steps=3)


def test_a_failed_load_of_a_handle_changes_nothing() -> None:
    model = cnn()
    pb.binarize(model, "bnn++")
    handle = pb.attach(model, torch.optim.SGD(model.parameters(), 0.1), steps=3)
    old = handle.state_dict()
    with pytest.raises(ValueError, match="of another model"):
        handle.load_state_dict({"elsewhere": {"strength": 1.0, "step": 3, "hard": False}})
    assert handle.state_dict() == old
