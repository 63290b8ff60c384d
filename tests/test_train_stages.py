"""Fine-tuning on new classes: a float stage first, which is the start and the teacher."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

from proxbit.cli.root import app
from proxbit.train import Config, evaluate, fit, open_run, resume_run
from proxbit.train.checkpoint import load_checkpoint
from proxbit.train.divergence import Interrupted
from proxbit.train.head_fitting import DECAY, fit_head, logistic_regression
from proxbit.train.settings import STRENGTHS, augmentation_for, float_epochs_for, weaker
from proxbit.train.setup import prepare
from proxbit.train.trainer import Trainer
from proxbit.util.compat import allow_torchvision
from proxbit.util.user_objects import user_object

pytestmark = pytest.mark.usefixtures("light_garbage")
NET = """
from torch import nn

def net(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes),
    )
"""
SHORT: dict[str, Any] = {
    "epochs": 1, "float_epochs": 2, "pretrain": 1, "batch_size": 16, "frozen": 0.5,
    "recalibrate": 2, "cpu": True, "distill": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, weights of five and of three classes, and 64 images of three."""
    path = tmp_path_factory.mktemp("place")
    (path / "net.py").write_text(NET)
    random, labels = np.random.default_rng(0), np.arange(96) % 3
    images = random.integers(0, 120, (96, 8, 8, 3)) + 60 * labels[:, None, None, None]
    images = images.astype("u1")
    arrays = {"x_train": images[:64], "y_train": labels[:64], "x_test": images[64:]}
    np.savez(path / "images.npz", **arrays, y_test=labels[64:])
    torch.manual_seed(0)
    for name, classes in (("five", 5), ("three", 3)):
        net = user_object(f"{path}/net.py:net")(classes, 3)
        save_file(net.state_dict(), path / f"{name}.safetensors")
    return path


def config(place: Path, weights: str = "five", **options: Any) -> Config:
    names = {"model": f"{place}/net.py:net", "data": f"npz:{place}/images.npz"}
    return Config(**{**names, "weights": f"{place}/{weights}.safetensors", **SHORT, **options})


def open_config(place: Path, weights: str = "five", **options: Any) -> Config:
    """With nothing said about the stages."""
    chosen = {"float_epochs": None, "pretrain": None, "distill": None}
    return config(place, weights, **chosen | options)


# The classifier


@given(st.integers(0, 99), st.integers(2, 5), st.integers(1, 4))
def test_the_classifier_is_where_the_loss_has_no_slope(seed: int, classes: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(40, width, generator=generator).double() + 1
    y = torch.randint(classes, (40,), generator=generator)
    weight, bias = logistic_regression(x.float(), y, classes)
    std, mean = x.std(0, correction=0), x.mean(0)
    inner = (weight.double() * std).requires_grad_()
    scores = ((x - mean) / std) @ inner.T + (bias + weight @ mean.float()).double()
    loss = functional.cross_entropy(scores, y) + DECAY * inner.square().sum()
    (slope,) = torch.autograd.grad(loss, inner)
    assert slope.abs().max() < 1e-3


def test_nothing_but_the_classifier_is_fitted() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    assert fit_head(model, ["2.weight", "2.bias"], [(x[:10], y[:10]), (x[10:], y[10:])])
    changed = [n for n, t in model.state_dict().items() if not torch.equal(t, before[n])]
    assert changed == ["2.weight", "2.bias"] and model.training and not model[2]._forward_pre_hooks


def test_a_classifier_of_another_kind_is_left_to_the_epochs() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten())
    assert not fit_head(model, ["0.weight", "0.bias"], [])
    assert not fit_head(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), ["0.weight", "1.bias"], [])


# What a run chooses


def test_weights_of_other_classes_bring_a_classifier_and_a_float_stage(place: Path) -> None:
    resolved = prepare(open_config(place)).config
    assert resolved.new_head is True and resolved.float_epochs == float_epochs_for(64)
    assert [stage.stage for stage in open_run(resolved).stages] == ["float"]


def test_weights_that_know_the_classes_bring_neither(place: Path) -> None:
    resolved = prepare(open_config(place, "three")).config
    assert resolved.new_head is False and resolved.float_epochs == 0
    assert open_run(resolved).stages == []


@pytest.mark.parametrize("options", [{"float_epochs": 0}, {"settings": "paper"}, {"method": "fp"}])
def test_the_float_stage_can_be_left_out(place: Path, options: dict[str, Any]) -> None:
    assert prepare(open_config(place, **options)).config.float_epochs == 0


@pytest.mark.parametrize(
    ("options", "words"), [({"weights": None}, "--weights"), ({"method": "fp"}, "not float")]
)
def test_a_float_stage_without_sense_is_refused(place: Path, options: Any, words: str) -> None:
    asked = replace(config(place, distill=False, pretrain=0), **options)
    with pytest.raises(ValueError, match=f"needs .*{words}.*--float-epochs 0"):
        prepare(asked)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning:timm.*")
def test_a_transformer_on_new_classes_has_a_teacher_by_default(place: Path, tmp_path: Path) -> None:
    allow_torchvision()
    pytest.importorskip("timm")
    from proxbit.models import build

    there = build("tiny_vit", classes=7, image_size=8, patch_size=4)
    save_file(there.state_dict(), tmp_path / "seven.safetensors")
    asked = open_config(place, model="tiny_vit", patch_size=4, epochs=2)
    asked = replace(asked, weights=str(tmp_path / "seven.safetensors"))
    trainer = open_run(asked)
    assert trainer.config.distill and trainer.config.augment == "crop"
    assert [stage.stage for stage in trainer.stages] == ["float", "pre-training"]


@given(st.integers(1, 400), st.integers(1, 400))
def test_augmentation_never_weakens_with_length(one: int, other: int) -> None:
    places = [STRENGTHS.index(augmentation_for(epochs)) for epochs in sorted((one, other))]
    assert places == sorted(places)


@given(st.sampled_from(STRENGTHS), st.sampled_from(STRENGTHS))
def test_the_float_stage_is_augmented_no_more_than_the_run(one: str, other: str) -> None:
    assert STRENGTHS.index(weaker(one, other)) == min(map(STRENGTHS.index, (one, other)))


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_the_float_stage_is_brief_and_no_longer_for_more_images(one: int, other: int) -> None:
    few, many = sorted((one, other))
    assert 1 <= float_epochs_for(many) <= float_epochs_for(few) <= 3


# What a run does


def train(trainer: Trainer, stops: set[tuple[str, int]]) -> bool:
    """Train until a step of a stage is done; whether the end was reached."""
    seen: list[tuple[str, int]] = []
    trainer.watch = lambda stage: seen.append((stage.stage, stage.progress.step))
    trainer.stop = lambda: seen[-1] in stops
    try:
        list(trainer)
    except Interrupted:
        return False
    return True


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    list(fit(config(place), out))
    return out


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(path)[0]


def assert_same(one: Path, other: Path) -> None:
    for name in ("last.safetensors", "model.safetensors"):
        a, b = tensors(one / name), tensors(other / name)
        assert a.keys() == b.keys()
        assert all(torch.equal(value, b[key]) for key, value in a.items()), name


@pytest.mark.parametrize(
    ("stage", "step"),
    [("float", 1), ("float", 7), ("pre-training", 2), ("epoch", 1), ("epoch", 3)],
)
def test_a_run_resumes_exactly_inside_each_stage(
    place: Path, whole: Path, tmp_path: Path, stage: str, step: int
) -> None:
    out = tmp_path / "run"
    assert not train(open_run(config(place), out), {(stage, step)})
    assert train(resume_run(out), set())
    for folder in (".", "float", "pretrain"):
        assert_same(whole / folder, out / folder)


def test_the_float_of_a_run_is_that_of_its_stage(whole: Path) -> None:
    run, stage = (
        json.loads((path / "result.json").read_text()) for path in (whole, whole / "float")
    )
    lines = (whole / "float" / "metrics.jsonl").read_text().splitlines()
    assert run["float"] == stage["hard"] == json.loads(lines[-1])["hard"]
    assert evaluate(whole / "float")["hard"] == run["float"]


def test_the_network_of_the_stage_is_start_and_teacher(place: Path, tmp_path: Path) -> None:
    trainer = open_run(config(place), tmp_path / "run")
    assert not train(trainer, {("epoch", 1)})
    found = tensors(tmp_path / "run" / "float" / "model.safetensors")
    for network in (trainer.prepared.teacher, trainer.prepared.start):
        assert network is not None
        held = network.state_dict()
        assert all(torch.equal(held[name], value) for name, value in found.items())


def test_without_a_folder_the_run_is_the_same(place: Path, whole: Path) -> None:
    trainer = open_run(config(place))
    list(trainer)
    kept = json.loads((whole / "result.json").read_text())
    mine = trainer.result()
    assert {n: mine[n] for n in ("float", "soft", "hard")} == {
        n: kept[n] for n in ("float", "soft", "hard")
    }


def test_a_lost_float_network_is_not_made_anew(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert not train(open_run(config(place), out), {("epoch", 1)})
    shutil.rmtree(out / "float")
    with pytest.raises(ValueError, match="the float network that the run started from, is missing"):
        resume_run(out)


def test_the_command_says_which_stage_an_epoch_is_of(place: Path, tmp_path: Path) -> None:
    asked = config(place)
    file = tmp_path / "asked.json"
    file.write_text(asked.to_json())
    said = CliRunner().invoke(app, ["train", f"--config={file}", f"--out={tmp_path / 'run'}"])
    assert said.exit_code == 0, said.output
    ends = [line.split()[-1] for line in said.output.splitlines() if " s  " in line]
    assert ends == ["float", "float", "pre-training", "best"]
