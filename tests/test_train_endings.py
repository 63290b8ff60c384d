"""What a run promises when it ends: hard weights, honest figures, the best network."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, safe_open
from torch import Tensor

from proxbit.core.methods import METHODS
from proxbit.train import Config, Record, evaluate, fit, load_network, open_run
from proxbit.train.divergence import Diverged
from proxbit.train.lr_schedules import lr_at
from proxbit.train.precision import choose_precision
from proxbit.train.records import read_records
from proxbit.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("light_garbage")
NETS = """
import torch
from torch import nn

def net(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 6), nn.Tanh(), nn.Linear(6, classes),
    )

def plain(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Tanh(),
        nn.Flatten(), nn.Linear(64, classes),
    )

class Root(nn.Module):
    '''Its derivative at 0 has no limit: a finite loss, and a gradient that is not.'''
    def forward(self, x):
        return x + (x * 0).sqrt()

def poison(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.Conv2d(4, 4, 3), Root(), nn.Flatten(), nn.Linear(64, classes)
    )

class Loose(nn.Module):
    '''Gives its output in a tuple, and far too large.'''
    def __init__(self, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.full((192, classes), 1e9))
    def forward(self, x):
        return (x.flatten(1) @ self.weight,)

class Untold(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.loose = Loose(classes)
    def forward(self, x):
        return self.loose(x)[0] * torch.arange(3)

def untold(classes):
    return Untold(classes)

class Sick(nn.Module):
    '''Gives no number from its sixth training batch on.'''
    count = 0
    def forward(self, x):
        self.count += self.training
        return x * float("nan") if self.training and self.count > 5 else x

def sick(classes, channels):
    layers = plain(classes, channels)
    layers[1] = Sick()
    return layers

def loud(classes, channels):
    layers = plain(classes, channels)
    nn.init.constant_(layers[5].bias, 0.0)
    with torch.no_grad():
        layers[5].weight.mul_(1e9)
    return layers
"""
BINARY = ("3.weight", "8.weight")  # of net: the first convolution and the classifier stay float
SHORT = {"epochs": 2, "batch_size": 16, "frozen": 0.25, "recalibrate": 2, "cpu": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models and 64 images of 3 classes."""
    path = tmp_path_factory.mktemp("place")
    (path / "net.py").write_text(NETS)
    save_images(path / "images.npz", seed=1)
    return path


def save_images(path: Path, seed: int) -> None:
    """The same training images, and test images that depend on the seed."""
    labels = np.arange(64) % 3
    for_training, for_test = np.random.default_rng(0), np.random.default_rng(seed)
    shift = 60 * labels[:, None, None, None]
    train, test = (
        (random.integers(0, 120, (64, 8, 8, 3)) + shift).astype("u1")
        for random in (for_training, for_test)
    )
    np.savez(path, x_train=train, y_train=labels, x_test=test[:48], y_test=labels[:48])


def config(place: Path, net: str = "net", **options: Any) -> Config:
    names = {"model": f"{place}/net.py:{net}", "data": f"npz:{place}/images.npz"}
    return Config(**{**names, **SHORT, **options})


def finished(options: Config, out: Path | None = None) -> Trainer:
    trainer = open_run(options, out)
    for _ in trainer:
        pass
    return trainer


def assert_hard(w: Tensor) -> None:
    """Two values at most in each output channel, one the negative of the other."""
    sizes = w.abs().flatten(1)
    assert torch.equal(sizes.amin(1), sizes.amax(1))
    assert bool((sizes > 0).all())


# Hard weights


@pytest.mark.parametrize("method", [name for name in METHODS if name != "fp"])
@pytest.mark.parametrize("frozen", [0.25, 0.0])
def test_every_binary_weight_ends_as_plus_or_minus_its_scale(place, tmp_path, method, frozen):
    records = list(fit(config(place, method=method, frozen=frozen), tmp_path / "run"))
    tensors = load_file(tmp_path / "run" / "model.safetensors")
    for name in BINARY:
        assert_hard(tensors[name])
    assert tensors["0.weight"].unique().numel() > 50  # float, and not hard by accident
    assert evaluate(tmp_path / "run")["hard"] == max(record.hard for record in records)


@pytest.mark.parametrize("task", ["BWA", "BWAA"])
@pytest.mark.parametrize("method", ["bnn++", "react", "ptb"])
def test_binary_activations_and_accumulators_train_and_end_hard(place, tmp_path, task, method):
    options = config(place, method=method, task=task, penalty=0.1)
    records = list(fit(options, tmp_path / "run"))
    tensors = load_file(tmp_path / "run" / "model.safetensors")
    for name in BINARY:
        assert_hard(tensors[name])
    assert evaluate(tmp_path / "run")["hard"] == max(record.hard for record in records)
    assert all((record.overflow is None) == (task == "BWA") for record in records)
    model, _ = load_network(tmp_path / "run")
    seen: list[Tensor] = []
    model[3].binary.input_quantizer.register_forward_hook(lambda *hook: seen.append(hook[2]))  # type: ignore[index,union-attr,operator]
    model(torch.randn(2, 3, 8, 8))
    assert set(seen[0].unique().tolist()) <= {-1.0, 1.0}


def test_signs_and_scales_stay_while_the_rest_trains_on(place):
    seen: list[dict[str, Tensor]] = []
    trainer = open_run(config(place, frozen=0.5, epochs=3))

    def look(trainer: Trainer) -> None:
        if trainer.phase == "frozen":
            seen.append({n: t.clone() for n, t in trainer.core.state_dict().items()})

    trainer.watch = look
    records = list(trainer)
    assert len(seen) == 6  # of 12 steps
    for name in BINARY:
        assert all(torch.equal(state[name], seen[0][name]) for state in seen)
    assert not torch.equal(seen[0]["0.weight"], seen[-1]["0.weight"])
    assert not torch.equal(seen[0]["1.bias"], seen[-1]["1.bias"])
    assert [record.phase for record in records] == ["sharp", "frozen", "frozen"]
    assert records[-1].flips == 0.0 and records[-1].saturated == 1.0
    assert records[-1].soft == records[-1].hard


# Figures


def test_the_best_network_is_that_of_the_best_hard_epoch(place, tmp_path):
    out = tmp_path / "run"
    records = list(fit(config(place, epochs=6, lr=0.03), out))
    best = max(record.hard for record in records)
    first = next(record for record in records if record.hard == best)
    with safe_open(out / "model.safetensors", "pt") as file:
        kept = json.loads(file.metadata()["state"])["record"]
    assert kept == first.to_dict()
    marks = [max((r.hard for r in records[:i]), default=-1.0) for i in range(len(records))]
    assert [record.best for record in records] == [
        record.hard > before for record, before in zip(records, marks, strict=True)
    ]
    result = json.loads((out / "result.json").read_text())
    assert result["hard"] == best == evaluate(out)["hard"]
    assert len({record.hard for record in records}) > 1  # or any network would have been the best


def test_the_recorded_accuracy_is_a_plain_count(place, tmp_path):
    """Against a loop over the images of the file, normalized by hand."""
    out = tmp_path / "run"
    list(fit(config(place), out))
    arrays = np.load(place / "images.npz")
    x = torch.from_numpy(arrays["x_train"]).double() / 255
    mean, std = x.mean((0, 1, 2)), x.std((0, 1, 2), correction=0)
    images = (torch.from_numpy(arrays["x_test"]).double() / 255 - mean) / std
    model, job = load_network(out)
    scores = model(images.permute(0, 3, 1, 2).float())
    right = int((scores.argmax(1) == torch.from_numpy(arrays["y_test"])).sum())
    assert evaluate(out) == {"run": str(out), "part": "test", "n": 48, "hard": right / 48}
    asked = {name: value for name, value in vars(config(place)).items() if value is not None}
    asked["precision"] = choose_precision("auto", cpu=True)
    assert not model.training and vars(job.config) == vars(job.config) | asked


def test_a_float_run_is_plain_training(place, tmp_path):
    records = list(fit(config(place, method="fp"), tmp_path / "run"))
    assert {record.phase for record in records} == {"float"}
    assert (
        list(fit(config(place, method="fp", task="BWAA", penalty=0.1)))[-1].hard == records[-1].hard
    )
    assert all(record.soft == record.hard for record in records)
    assert all(r.flips is r.saturated is r.strength is r.overflow is None for r in records)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["soft"] is result["gap"] is result["float"] is None
    assert result["hard"] == evaluate(tmp_path / "run")["hard"]
    assert result["bytes_float"] == result["bytes_packed"]


def test_ptb_is_float_training_that_is_binarized_afterwards(place):
    float_run, ptb = (
        finished(config(place, method=method, frozen=0.0)) for method in ("fp", "ptb")
    )
    for name, value in float_run.core.state_dict().items():
        if "num_batches" not in name:
            assert torch.equal(ptb.core.state_dict()[name], value), name


def test_the_start_of_a_fine_tuned_run_is_the_end_of_the_float_one(place, tmp_path):
    list(fit(config(place, method="fp", epochs=4), tmp_path / "float"))
    trainer = finished(config(place, weights=str(tmp_path / "float")), tmp_path / "tuned")
    result = trainer.result()
    assert result["float"] == evaluate(tmp_path / "float")["hard"]
    assert trainer.config.pipeline == "fine-tune"
    assert result["gap"] == result["soft"] - result["hard"]


def test_without_a_frozen_phase_soft_and_hard_are_those_of_the_last_epoch(place, tmp_path):
    trainer = open_run(config(place, frozen=0.0))
    last = list(trainer)[-1]
    assert (trainer.result()["soft"], trainer.result()["hardened"]) == (last.soft, last.hard)


def test_strength_and_rate_follow_their_formulas(place):
    options = config(place, strength="2:6", sharp=0, frozen=0.25, epochs=4, warmup=0.25, lr=0.01)
    steps, soft_steps = 16, 12
    for record in fit(options):
        progress = min(record.step / (soft_steps - 1), 1)
        assert record.strength == pytest.approx(2 + 4 * progress)
        done = (record.step - 1 - 4) / (steps - 4)  # 4 steps of warming up
        wanted = 0.01 * (1 + math.cos(math.pi * done)) / 2 if done >= 0 else 0.01
        assert record.lr == pytest.approx(wanted)


@given(
    steps=st.integers(1, 1000),
    warmup=st.floats(0, 0.99),
    decay=st.sampled_from(["cosine", "linear", "constant"]),
)
def test_the_rate_rises_and_then_falls(steps, warmup, decay):
    rates = [lr_at(step, steps, warmup, decay) for step in range(steps + 1)]
    top = math.ceil(warmup * steps)
    assert all(0 <= rate <= 1 for rate in rates) and rates[0] > 0
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == 1 and (decay == "constant" or rates[-1] < 1e-12 or top == steps)


def test_flips_are_the_signs_that_changed(place):
    """Counted by hand for BC, whose sign is that of the latent weight."""
    trainer = open_run(config(place, method="bc", frozen=0.0, lr=0.02, epochs=3))
    signs = [_signs(trainer.core)]
    for record in trainer:
        signs.append(_signs(trainer.core))
        assert record.flips == pytest.approx(float((signs[-1] != signs[-2]).float().mean()))
    assert not torch.equal(signs[0], signs[-1])


def _signs(model: Any) -> Tensor:
    state = model.state_dict()
    return torch.cat([(state[name] >= 0).flatten() for name in BINARY])


# Parts of a run


@pytest.mark.parametrize("method", ["fp", "bnn++", "bc"])
def test_a_batch_in_parts_is_the_same_batch(place, method):
    """Exactly so for networks whose images do not see each other."""
    options = {"optimizer": "sgd", "lr": 0.02, "weight_decay": 0.0, "method": method}
    options["precision"] = "no"
    whole = finished(config(place, "plain", **options))
    for accumulate in (2, 3, 16):
        parts = finished(config(place, "plain", grad_accum_steps=accumulate, **options))
        for name, value in whole.core.state_dict().items():
            torch.testing.assert_close(parts.core.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_the_average_is_what_its_formula_says(place):
    decay = 0.6
    trainer = open_run(config(place, ema=decay, frozen=0.0, method="bc"))
    mine: dict[str, Tensor] = {
        name: p.detach().double().clone() for name, p in trainer.core.named_parameters()
    }

    def follow(trainer: Trainer) -> None:
        for name, p in trainer.core.named_parameters():
            mine[name] = decay * mine[name] + (1 - decay) * p.detach().double()

    trainer.watch = follow
    for _ in trainer:
        pass
    assert trainer.average is not None
    for name, value in mine.items():
        torch.testing.assert_close(trainer.average.values[name].double(), value)
    hard = trainer.evaluator.model.state_dict()["3.weight"]
    assert torch.equal(hard.sign(), mine["3.weight"].float().sign())  # it is what was measured


def test_the_average_of_a_frozen_network_stays_hard(place, tmp_path):
    list(fit(config(place, ema=0.9, frozen=0.5), tmp_path / "run"))
    last = load_file(tmp_path / "run" / "last.safetensors")
    for name in BINARY:
        assert torch.equal(last[f"average/{name}"], last[f"model/{name}"])
        assert_hard(last[f"average/{name}"])


def test_held_back_images_choose_and_test_images_do_not(place, tmp_path):
    """With other test images, everything but their own accuracy stays the same."""
    options, runs = config(place, val_split=0.25, epochs=4), []
    for seed in (1, 2):
        data = tmp_path / f"{seed}.npz"
        save_images(data, seed)
        runs.append(tmp_path / f"run{seed}")
        list(fit(replace(options, data=f"npz:{data}"), runs[-1]))
    one, other = (load_file(run / "model.safetensors") for run in runs)
    assert all(torch.equal(one[name], other[name]) for name in one)
    records = [read_records(run / "metrics.jsonl") for run in runs]
    assert [r.hard for r in records[0]] == [r.hard for r in records[1]]
    assert {record.part for record in records[0]} == {"validation"}
    result = json.loads((runs[0] / "result.json").read_text())
    assert (result["part"], result["n"]) == ("validation", 16)
    assert evaluate(runs[0], "validation")["hard"] == result["hard"]
    assert evaluate(runs[0], "test")["n"] == 48


# Divergence


def test_a_loss_that_explodes_stops_the_run_before_the_step(place, tmp_path):
    trainer = open_run(config(place, lr=1e30, warmup=0.0, method="fp"), tmp_path / "run")
    with pytest.raises(Diverged, match=r"the loss became .* at step 1, where .*--lr"):
        list(trainer)
    last = load_file(tmp_path / "run" / "last.safetensors")
    assert all(bool(torch.isfinite(t).all()) for t in last.values())


@pytest.mark.parametrize(("method", "task"), [("bnn++", "BW"), ("bc", "BWA"), ("bnn", "BWAA")])
def test_the_layer_where_it_began_is_named(place, method, task):
    """Also where the next layer takes nothing but signs: that of NaN is NaN."""
    with pytest.raises(Diverged, match=r"became nan at step 5, where the output of 1 is not fin"):
        list(fit(config(place, "sick", method=method, task=task)))


def test_a_loss_that_is_finite_but_huge_names_the_layer_with_the_largest_output(place):
    with pytest.raises(Diverged, match=r"at step 0, where the output of 5 reaches \d"):
        list(fit(config(place, "loud", method="fp")))


def test_a_network_that_cannot_be_looked_into_is_refused_all_the_same(place):
    with pytest.raises(Diverged, match=r"at step 0, in a network whose layers give no tensors"):
        list(fit(config(place, "untold", method="fp")))


@pytest.mark.parametrize("limit", [1, 4])
def test_a_network_that_broke_is_never_saved(place, tmp_path, limit):
    """A finite loss whose gradient is not: the step breaks the weights, and no checkpoint does."""
    trainer = open_run(config(place, "poison", max_steps_per_epoch=limit), tmp_path / "run")
    with pytest.raises(Diverged, match=r"0\.weight (is not|was no longer) finite"):
        list(trainer)
    last = load_file(tmp_path / "run" / "last.safetensors")
    assert all(bool(torch.isfinite(t).all()) for t in last.values())
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert read_records(tmp_path / "run" / "metrics.jsonl") == []


def test_a_stop_does_not_save_a_broken_network(place, tmp_path):
    trainer = open_run(config(place, "poison"), tmp_path / "run")
    trainer.stop = lambda: True
    with pytest.raises(Diverged, match="was no longer finite after step 1"):
        list(trainer)
    assert bool(
        torch.isfinite(load_file(tmp_path / "run" / "last.safetensors")["model/0.weight"]).all()
    )


# The function


def test_fit_yields_a_record_per_epoch_and_prints_nothing(place, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    steps: list[int] = []
    records = fit(config(place), watch=lambda trainer: steps.append(trainer.progress.step))
    assert isinstance(records, Iterator) and steps == []
    first = next(records)
    assert isinstance(first, Record) and first.epoch == 1 and steps == [1, 2, 3, 4]
    assert [record.epoch for record in records] == [2] and steps == list(range(1, 9))
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_fit_finds_mistakes_at_once(place, tmp_path):
    with pytest.raises(ValueError, match="did you mean 'bnn\\+\\+'"):
        fit(config(place, method="bnn+++"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_runs_of_a_seed_are_equal_and_of_two_seeds_are_not(place):
    runs = [finished(config(place, seed=seed)).core.state_dict() for seed in (3, 3, 4)]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert not torch.equal(runs[0]["0.weight"], runs[2]["0.weight"])
