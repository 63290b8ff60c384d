"""Copies of models and optimizers: deepcopy, pickle and moving averages."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import proxbit as pb

ALL = [(method, task) for method in pb.METHODS for task in ("BW", "BWA", "BWAA")]


def binary_cnn(method: str, task: Any = "BW") -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 8), nn.Tanh(), nn.Linear(8, 3),
    )  # fmt: skip
    pb.binarize(model, method, task, relu=nn.Hardtanh)
    return model


def attention(method: str, **arguments: Any) -> nn.Module:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    pb.binarize(model, method, "BWA", relu=nn.Hardtanh, **arguments)
    return model


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 1, 4, 4), torch.randint(3, (6,))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def strengths(model: nn.Module) -> list[float]:
    return [float(m.strength) for m in model.modules() if isinstance(m, pb.nn.Quantizer)]


def assert_independent_twin(model: nn.Module, twin: nn.Module, x: Tensor) -> None:
    assert torch.equal(model.eval()(x), twin.eval()(x))
    assert strengths(model) == strengths(twin)
    assert [w.name for w in pb.binary_weights(twin)] == [w.name for w in pb.binary_weights(model)]
    shared = {id(p) for p in model.parameters()} & {id(p) for p in twin.parameters()}
    assert not shared
    before = model(x)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    pb.set_strength(twin, 3.0)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize(("method", "task"), ALL)
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_is_equal_and_independent(method: str, task: str, how: str) -> None:
    model = binary_cnn(method, task)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pb.attach(model, optimizer, steps=5)
    train(model, optimizer)
    twin = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert_independent_twin(model, twin, batch()[0])


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize("method", ["bnn++", "react"])
def test_so_is_a_copy_of_attention(method: str, how: str) -> None:
    model = attention(method)
    twin = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert_independent_twin(model, twin, torch.randn(2, 3, 8))


@pytest.mark.parametrize("method", ["bnn++", "react"])
def test_a_deepcopy_of_parametrized_weights_is_equal_and_independent(method: str) -> None:
    model = attention(method, parametrize=["self_attn", "linear1"])
    assert_independent_twin(model, copy.deepcopy(model), torch.randn(2, 3, 8))


def test_a_copy_restores_hardens_and_trains_like_the_original() -> None:
    model = binary_cnn("bnn++", "BWA")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        pb.restore(twin)
        assert not pb.binary_weights(twin)
        assert type(twin[3]) is nn.Conv2d
        assert type(twin[2]) is nn.ReLU
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    pb.attach(twin, optimizer, steps=3)
    train(twin, optimizer)
    pb.harden(twin)
    assert not any(w.quantizer.hard for w in pb.binary_weights(model))


@pytest.mark.parametrize("method", ["bnn++", "pq"])
def test_a_hard_copy_stays_hard(method: str) -> None:
    model = pb.harden(binary_cnn(method, "BWA"))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert all(w.quantizer.hard for w in pb.binary_weights(twin))
        assert not any(p.requires_grad for p in pb.latent_parameters(twin))
        assert_independent_twin(model, twin, batch()[0])


def test_a_copied_model_flips_apart_from_its_original() -> None:
    model = binary_cnn("bnn")
    pb.diagnose(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[3].weight.mul_(-1)
    assert [layer.flips for layer in pb.diagnose(model).layers] == [0.0, 0.0]
    assert [layer.flips for layer in pb.diagnose(twin).layers] == [None, None]


# Optimizers --------------------------------------------------------------------------------------


def test_a_copied_optimizer_has_no_hooks_and_may_be_attached_again() -> None:
    model = binary_cnn("bnn++")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = pb.attach(model, optimizer, steps=5)
    train(model, optimizer, 1)
    both = copy.deepcopy({"model": model, "optimizer": optimizer})
    twin, twin_optimizer = both["model"], both["optimizer"]
    old = strengths(twin)
    train(twin, twin_optimizer, 2)
    assert strengths(twin) == old
    assert strengths(model) == old
    again = pb.attach(twin, twin_optimizer, steps=5)
    assert again.step == 1
    train(twin, twin_optimizer, 1)
    assert again.step == 2
    assert strengths(twin) != old
    assert handle.step == 1
    assert strengths(model) == old


def test_after_remove_the_strength_stays_and_attaching_again_goes_on() -> None:
    model = binary_cnn("bnn++")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = pb.attach(model, optimizer, steps=8)
    train(model, optimizer, 2)
    old = strengths(model)
    assert old[0] == pytest.approx(3 ** (2 / 3))  # the fourth of the first four steps is at 3
    handle.remove()
    handle.remove()  # twice is fine
    train(model, optimizer, 2)
    assert strengths(model) == old
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    other = torch.optim.Adam(model.parameters(), lr=0.01)
    handle = pb.attach(model, other, steps=8)
    assert handle.step == 2
    assert strengths(model) == old
    train(model, other, 1)
    assert strengths(model)[0] == 3


def test_the_attachment_keeps_neither_model_nor_optimizer_alive() -> None:
    import gc
    import weakref

    model = binary_cnn("bnn++")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pb.attach(model, optimizer, steps=5)
    pb.diagnose(model)
    ghosts = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model[3].weight)]
    del model, optimizer
    gc.collect()
    assert [ghost() for ghost in ghosts] == [None, None, None]


# Moving averages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "task"), ALL)
@pytest.mark.parametrize("use_buffers", [True, False])
def test_a_moving_average_of_latents_is_a_binarized_model_that_hardens(
    method: str, task: str, use_buffers: bool
) -> None:
    model = binary_cnn(method, task)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pb.attach(model, optimizer, steps=4)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
    expected = {n: p.detach().clone() for n, p in model.named_parameters()}
    for step in range(4):
        train(model, optimizer, 1)
        average.update_parameters(model)
        for n, p in model.named_parameters():
            expected[n] = p.detach().clone() if step == 0 else expected[n].lerp(p.detach(), 0.1)
    for n, p in average.module.named_parameters():
        torch.testing.assert_close(p.detach(), expected[n])
    x, _ = batch()
    assert bool(average.eval()(x).isfinite().all())
    if not pb.METHODS[method].binary:
        return
    pb.harden(average)
    for weight in pb.binary_weights(average):
        w = weight.latent
        sizes = w.abs().amax(weight.quantizer.method.scale.dims(w), keepdim=True)
        assert torch.equal(w.abs(), sizes.expand_as(w))
    assert pb.probe(average, x).ok
    assert not any(w.quantizer.hard for w in pb.binary_weights(model))


def test_without_averaged_buffers_the_average_has_the_strength_of_the_model() -> None:
    model = binary_cnn("bnn++")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pb.attach(model, optimizer, steps=4)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        train(model, optimizer, 1)
        average.update_parameters(model)
    assert strengths(average) == strengths(model)


def soft_turned_sharp(task: Any = "BWA") -> tuple[nn.Sequential, Any, Any]:
    """A model of BNN++ with its optimizer and handle, whose second half of four steps is signs."""
    model = binary_cnn("bnn++", task)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, pb.attach(model, optimizer, steps=4)


def sharpness(model: nn.Module) -> set[bool]:
    return {m.sharp for m in model.modules() if isinstance(m, pb.nn.Quantizer)}


@pytest.mark.parametrize("use_buffers", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("multi", [get_ema_multi_avg_fn(0.9), None])
def test_a_moving_average_turns_to_signs_with_its_model(
    use_buffers: bool, mode: str, multi: Any
) -> None:
    """Also if its mode is set once, before the first step, and it runs in between."""
    model, optimizer, _ = soft_turned_sharp()
    average = AveragedModel(model, multi_avg_fn=multi, use_buffers=use_buffers)
    average.train(mode == "train")
    x, _ = batch()
    for _ in range(4):
        train(model, optimizer, 1)
        average.update_parameters(model)
        average(x)
        assert sharpness(average) == sharpness(model)
    assert sharpness(average) == {True}
    average.eval()
    torch.testing.assert_close(average(x), pb.hardened(average)(x))


def test_a_plain_copy_stays_soft_when_its_model_turns() -> None:
    model, optimizer, _ = soft_turned_sharp()
    twin = copy.deepcopy(model)
    train(model, optimizer, 4)
    assert (sharpness(model), sharpness(twin)) == ({True}, {False})


def test_a_compiled_average_turns_too() -> None:
    torch._dynamo.reset()
    model, optimizer, _ = soft_turned_sharp()
    average = AveragedModel(model).eval()
    compiled = torch.compile(average, backend="eager", fullgraph=True)
    x, _ = batch()
    compiled(x)
    for _ in range(4):
        train(model, optimizer, 1)
        average.update_parameters(model)
    torch.testing.assert_close(compiled(x), pb.hardened(average)(x))


@pytest.mark.parametrize("version", ["ModelEmaV2", "ModelEmaV3"])
def test_the_average_of_timm_follows_when_told(version: str) -> None:
    from proxbit.util.compat import allow_torchvision

    allow_torchvision()
    utils = pytest.importorskip("timm.utils")
    model, optimizer, handle = soft_turned_sharp()
    average = getattr(utils, version)(model, decay=0.9)
    x, _ = batch()
    for _ in range(4):
        train(model, optimizer, 1)
        average.update(model)
        handle.sync(average)
        assert sharpness(average) == sharpness(model)
        assert strengths(average) == strengths(model)
    torch.testing.assert_close(average.module(x), pb.hardened(average.module)(x))
    with pytest.raises(ValueError, match="not a copy of the model"):
        handle.sync(binary_cnn("bnn++", "BW"))


def test_what_writes_into_the_buffers_of_a_led_model_does_not_turn_it() -> None:
    """DDP sends buffers around at every step; reading them each time would wait for the device."""
    model, _, handle = soft_turned_sharp()
    for module in model.modules():
        if isinstance(module, pb.nn.Quantizer):
            module.signs.fill_(1.0)
    assert sharpness(model) == {False}
    handle.remove()
    assert sharpness(model) == {True}


def test_moving_a_model_keeps_it_as_sharp_as_it_was() -> None:
    for model, expected in ((binary_cnn("bnn++"), False), (binary_cnn("bnn++"), True)):
        if expected:
            pb.sharpen(model)
        model.double().to("meta").to_empty(device="cpu")
        assert sharpness(model) == {expected}
