"""A run that was stopped and resumed is the run that was never stopped, bit for bit."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import safe_open

from proxbit.core.methods import METHODS
from proxbit.train import Config, fit, open_run, resume_run
from proxbit.train.divergence import Interrupted
from proxbit.train.trainer import Trainer
from proxbit.util.compat import allow_torchvision

pytestmark = pytest.mark.usefixtures("light_garbage")
NET = """
from torch import nn

def net(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 6), nn.Tanh(), nn.Linear(6, classes),
    )
"""
# 2 epochs of 4 steps; the network is made hard after the 6th.
SHORT = {"epochs": 2, "batch_size": 16, "frozen": 0.25, "recalibrate": 2, "cpu": True}
HARDENED_AT = 6


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and 64 images of 3 classes."""
    path = tmp_path_factory.mktemp("place")
    (path / "net.py").write_text(NET)
    random = np.random.default_rng(0)
    labels = np.arange(96) % 3
    images = (random.integers(0, 120, (96, 8, 8, 3)) + 60 * labels[:, None, None, None]).astype(
        "u1"
    )
    arrays = {"x_train": images[:64], "y_train": labels[:64], "x_test": images[64:]}
    np.savez(path / "images.npz", **arrays, y_test=labels[64:])
    return path


def config(place: Path, **options: Any) -> Config:
    names = {"model": f"{place}/net.py:net", "data": f"npz:{place}/images.npz"}
    return Config(**{**names, **SHORT, **options})


def train(trainer: Trainer, stops: set[int]) -> bool:
    """Train until a step of ``stops`` is done; whether the end was reached."""
    trainer.stop = lambda: trainer.progress.step in stops
    try:
        for _ in trainer:
            pass
    except Interrupted:
        return False
    return True


def train_in_pieces(options: Config, out: Path, stops: set[int]) -> int:
    """The same run, stopped and resumed; how often it was."""
    done, pieces = train(open_run(options, out), stops), 0
    while not done:
        pieces += 1
        done = train(resume_run(out), stops)
    return pieces


def timeless(value: Any) -> Any:
    """Plain values without what a clock says."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in ("seconds", "spent")}
    return value


def content(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    with safe_open(path, "pt") as file:
        state = json.loads(file.metadata()["state"])
        return timeless(state), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def assert_same_run(one: Path, other: Path) -> None:
    for name in ("last.safetensors", "model.safetensors"):
        (state, tensors), (state_2, tensors_2) = content(one / name), content(other / name)
        assert state == state_2
        assert tensors.keys() == tensors_2.keys()
        for key, value in tensors.items():
            assert value.dtype == tensors_2[key].dtype
            assert torch.equal(value, tensors_2[key]), f"{name}: {key}"
    lines, lines_2 = ((run / "metrics.jsonl").read_text().splitlines() for run in (one, other))
    assert [timeless(json.loads(x)) for x in lines] == [timeless(json.loads(x)) for x in lines_2]
    results = [json.loads((run / "result.json").read_text()) for run in (one, other)]
    assert timeless(results[0]) == timeless(results[1])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_resumes_before_at_and_after_hardening(place, tmp_path, method):
    options = config(place, method=method)
    whole = list(fit(options, tmp_path / "whole"))
    stops = {3, 4, HARDENED_AT, HARDENED_AT + 1}
    assert train_in_pieces(options, tmp_path / "pieces", stops) == len(stops)
    assert_same_run(tmp_path / "whole", tmp_path / "pieces")
    assert whole[-1].phase == ("float" if method == "fp" else "frozen")


VARIANTS: dict[str, dict[str, Any]] = {
    "average": {"ema": 0.7},
    "average, float": {"ema": 0.7, "method": "fp"},
    "inputs": {"task": "BWA", "method": "react"},
    "accumulators": {"task": "BWAA", "bits": 6, "penalty": 0.1},
    "momentum": {"optimizer": "sgd", "lr": 0.05, "weight_decay": 0.01, "latent_decay": 0.01},
    "parts": {
        "grad_accum_steps": 2,
        "clip_norm": 0.5,
        "label_smoothing": 0.1,
        "optimizer": "adamw",
    },
    "held back": {"val_split": 0.25, "batch_size": 12, "augment": "none"},
    "never hard": {"frozen": 0.0, "lr_schedule": "linear", "warmup": 0.5},
    "always hard": {"frozen": 0.9, "sharp": 0.0},
    "sharp": {"sharp": 0.4},
    "lower precision": {"precision": "bf16"},
    "paper": {"settings": "paper", "method": "bnn++", "strength": "1:5"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_run_resumes(place, tmp_path, name):
    options = config(place, **VARIANTS[name])
    list(fit(options, tmp_path / "whole"))
    stops = {3, HARDENED_AT}
    assert train_in_pieces(options, tmp_path / "pieces", stops) == len(stops)
    assert_same_run(tmp_path / "whole", tmp_path / "pieces")


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    list(fit(config(place, ema=0.5), out))
    return out


@settings(max_examples=6)
@given(stops=st.sets(st.sampled_from([1, 2, 3, 4, 5, 6, 7])))
def test_it_does_not_matter_when_or_how_often_a_run_is_stopped(
    place, whole, tmp_path_factory, stops
):
    out = tmp_path_factory.mktemp("pieces") / "run"
    assert train_in_pieces(config(place, ema=0.5), out, stops) == len(stops)
    assert_same_run(whole, out)


def test_a_checkpoint_between_two_others_is_one_to_resume_from(place, whole, tmp_path, monkeypatch):
    """A run that saves by the clock and then dies leaves that checkpoint, not an older one."""
    monkeypatch.setattr("proxbit.train.trainer.SAVE_SECONDS", 0.0)
    trainer = open_run(config(place, ema=0.5), tmp_path / "run")

    def die(_: Trainer) -> None:
        if trainer.progress.step == 7:
            raise KeyboardInterrupt

    trainer.watch = die
    with pytest.raises(KeyboardInterrupt):
        list(trainer)
    resumed = resume_run(tmp_path / "run")
    assert resumed.progress.step == 6
    assert train(resumed, set())
    assert_same_run(whole, tmp_path / "run")


class Killed(BaseException):
    """Nothing catches it: as a kill would, it ends the run where it is."""


@pytest.mark.parametrize(
    "function", ["save_checkpoint", "append_line", "refuse_broken", "harden", "diagnose"]
)
@pytest.mark.parametrize("call", [1, 2])
def test_a_run_that_ends_anywhere_else_resumes_too(
    place, whole, tmp_path, monkeypatch, function, call
):
    """Such as after a record was written but before its checkpoint."""
    from proxbit.train import checkpoint, trainer

    module = checkpoint if function == "save_checkpoint" else trainer
    original, calls = getattr(module, function), []

    def end_after(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        calls.append(function)
        if len(calls) == call:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(module, function, end_after)
        with suppress(Killed):
            list(fit(config(place, ema=0.5), tmp_path / "run"))
    assert calls, f"{function} was never called"
    assert train(resume_run(tmp_path / "run"), set())
    assert_same_run(whole, tmp_path / "run")


STAGES = {"pretrain": 2, "epochs": 1, "frozen": 0.5, "method": "bnn++"}


def test_a_run_resumes_in_the_stage_before_and_after_it(place, tmp_path):
    options = config(place, **STAGES)
    list(fit(options, tmp_path / "whole"))
    out, pieces = tmp_path / "pieces", 0
    trainer = open_run(options, out)
    stops = {1, 6}  # of the stage before, of 8 steps; and 1 of the run itself, of 4
    while not _train_stages(trainer, stops):
        pieces += 1
        trainer = resume_run(out)
    assert pieces == 3
    assert_same_run(tmp_path / "whole", out)
    assert_same_run(tmp_path / "whole" / "pretrain", out / "pretrain")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning:timm.*")
def test_a_transformer_resumes_with_teacher_norms_and_mixed_images(place, tmp_path):
    allow_torchvision()
    pytest.importorskip("timm")
    names = {"model": "tiny_vit", "patch_size": 4, "epochs": 1}
    list(fit(config(place, method="fp", **names), tmp_path / "float"))
    more = {"frozen": 0.5, "augment": "timm"}
    options = config(place, weights=str(tmp_path / "float"), **names | more)
    list(fit(options, tmp_path / "whole"))
    kept = json.loads((tmp_path / "whole" / "config.json").read_text())
    chosen = {"distill": True, "attention_norm": True, "pretrain": 1}
    assert chosen.items() <= kept.items()
    trainer = open_run(options, tmp_path / "pieces")
    while not _train_stages(trainer, {2}):
        trainer = resume_run(tmp_path / "pieces")
    assert_same_run(tmp_path / "whole", tmp_path / "pieces")


def _train_stages(trainer: Trainer, stops: set[int]) -> bool:
    seen: list[Trainer] = []
    trainer.watch = seen.append
    trainer.stop = lambda: seen[-1].progress.step in stops
    try:
        for _ in trainer:
            pass
    except Interrupted:
        return False
    return True


def test_the_stage_before_changes_the_run(place, tmp_path):
    """So that the test above says something: without that stage the weights are others."""
    list(fit(config(place, **STAGES), tmp_path / "with"))
    list(fit(config(place, **STAGES | {"pretrain": 0}), tmp_path / "without"))
    (_, one), (_, other) = (
        content(tmp_path / name / "model.safetensors") for name in ("with", "without")
    )
    assert not torch.equal(one["0.weight"], other["0.weight"])


def test_a_finished_run_stays_as_it_is(place, whole):
    before = content(whole / "last.safetensors"), (whole / "metrics.jsonl").read_text()
    assert list(resume_run(whole)) == []
    (state, tensors), metrics = before
    again, values = content(whole / "last.safetensors")
    assert again == state
    assert all(torch.equal(values[name], tensor) for name, tensor in tensors.items())
    assert (whole / "metrics.jsonl").read_text() == metrics


@pytest.mark.parametrize("seed", [0, 1])
def test_dropout_follows_from_seed_and_step_alone(place, tmp_path, seed):
    """Whatever the user drew before."""
    runs = []
    for drawn in (0, 5):
        torch.rand(drawn)
        out = tmp_path / f"{seed}-{drawn}"
        list(fit(config(place, seed=seed), out))
        runs.append(out)
    assert_same_run(*runs)
