"""The files of a run belong together: what is lost or changed is named, nothing is restarted."""

import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from proxbit.cli.root import app
from proxbit.experiments.selection.trials import open_trial
from proxbit.train import Config, evaluate, fit, open_run, resume_run
from proxbit.train.checkpoint import changes, load_checkpoint, require_same, save_checkpoint
from proxbit.train.divergence import Interrupted
from proxbit.train.records import read_records
from proxbit.train.run_folder import RunFolder
from proxbit.util.schema import read_json
from small_net import NET

pytestmark = pytest.mark.usefixtures("light_garbage")
LAST, BEST, METRICS = "last.safetensors", "model.safetensors", "metrics.jsonl"


class Killed(BaseException):
    """Nothing catches it: as a kill would, it ends the run where it is."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Three epochs of two steps."""
    place = tmp_path_factory.mktemp("place")
    (place / "net.py").write_text(NET)
    noise = np.random.default_rng(0)
    labels, images = np.arange(32) % 2, noise.integers(0, 256, (32, 8, 8, 3)).astype("u1")
    np.savez(place / "i.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return Config(
        model=f"{place}/net.py:net", data=f"npz:{place}/i.npz", epochs=3, batch_size=16,
        frozen=0.25, recalibrate=1, cpu=True, precision="no",
    )  # fmt: skip


def stop_at(config: Config, out: Path, step: int) -> Path:
    """A run that was stopped after so many steps."""
    trainer = open_run(config, out)
    trainer.stop = lambda: trainer.progress.step == step
    with suppress(Interrupted):
        list(trainer)
    return out


@pytest.fixture(scope="module")
def runs(config: Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs as far as they are: within the first epoch, after it, done."""
    place = tmp_path_factory.mktemp("runs")
    steps = {"begun": 1, "second epoch": 3, "done": -1}
    return {name: stop_at(config, place / name, step) for name, step in steps.items()}


@pytest.fixture
def run(runs: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of them to damage."""
    return lambda name: Path(shutil.copytree(runs[name], tmp_path / name))


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def refusal(*arguments: str | Path) -> str:
    """The one sentence of a command that refuses."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    return result.stderr


def assert_same_end(one: Path, other: Path) -> None:
    for name in (LAST, BEST):
        (first, _), (second, _) = load_checkpoint(one / name), load_checkpoint(other / name)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
    epochs = [[r.epoch for r in read_records(run / METRICS)] for run in (one, other)]
    assert epochs[0] == epochs[1]


# What is missing


@pytest.mark.parametrize("state", ["begun", "second epoch", "done"])
def test_a_run_without_its_checkpoint_is_not_begun_anew(run, state):
    out = run(state)
    (out / LAST).unlink()
    before = content(out)
    said = refusal("train", "--resume", out)
    assert f"{LAST}, from which the run goes on, is missing in" in said and "put it back" in said
    assert content(out) == before
    if state == "done":
        assert evaluate(out)["n"] == 32


@pytest.mark.parametrize("state", ["second epoch", "done"])
def test_a_run_without_its_best_network_does_not_end_without_one(run, state):
    out = run(state)
    (out / BEST).unlink()
    before = content(out)
    assert f"{BEST}, the best network so far, is missing in" in refusal("train", "--resume", out)
    assert content(out) == before


def test_a_run_killed_before_its_first_checkpoint_begins_from_the_start(
    config, runs, tmp_path, monkeypatch
):
    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr("proxbit.train.checkpoint.save_checkpoint", kill)
        list(fit(config, tmp_path / "run"))
    assert load_checkpoint(tmp_path / "run" / LAST)[1]["begun"] is False
    assert len(list(resume_run(tmp_path / "run"))) == config.epochs
    assert_same_end(runs["done"], tmp_path / "run")


@pytest.mark.parametrize("pretrain", [0, 1])
@pytest.mark.parametrize("call", range(1, 8))
def test_a_kill_while_the_folder_is_made_loses_nothing(
    config, tmp_path, monkeypatch, call, pretrain
):
    """It can be begun or, if it has a configuration already, resumed."""
    original, calls = os.fsync, []
    options, out = replace(config, pretrain=pretrain), tmp_path / "run"

    def fail(handle: int) -> None:
        calls.append(handle)
        if len(calls) == call:
            raise Killed
        original(handle)

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr("os.fsync", fail)
        open_run(options, out).close()
    trainer = resume_run(out) if (out / "config.json").exists() else open_run(options, out)
    assert len(list(trainer)) == config.epochs


STAGED = {"pretrain": 2}


def test_a_stage_that_was_lost_is_not_repeated(config, tmp_path):
    out = tmp_path / "run"
    trainer = open_run(replace(config, **STAGED), out)
    seen: list[int] = []
    trainer.watch = lambda stage: seen.append(stage.progress.step)
    trainer.stop = lambda: len(seen) == 3
    with pytest.raises(Interrupted):
        list(trainer)
    kept = tmp_path / "kept"
    shutil.copytree(out, kept)
    (out / "pretrain" / LAST).unlink()
    assert f"{LAST}, from which the run goes on, is missing in" in refusal("train", "--resume", out)
    shutil.rmtree(out / "pretrain")
    assert "config.json, the stage before, is missing in" in refusal("train", "--resume", out)
    edit(kept, epochs=7)  # of the run; its stage has epochs of its own
    assert "epochs 7, which was 3" in refusal("train", "--resume", kept)


# What was changed


def edit(out: Path, **values: Any) -> None:
    path = out / "config.json"
    path.write_text(json.dumps(read_json(path) | values, indent=1))


OTHER: dict[str, Any] = {
    "seed": 1, "batch_size": 8, "lr": 0.5, "epochs": 9, "frozen": 0.5, "method": "bc",
    "max_steps_per_epoch": 1,
    "task": "BWA", "augment": "none", "strength": "1:4:log", "ema": 0.5, "data": "npz:/x/k.npz",
    "weights": "w.safetensors", "precision": "bf16", "optimizer": "sgd", "val_split": 0.5,
    "normalize": "imagenet", "settings": "paper", "label_smoothing": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_a_changed_option_is_named_with_both_values_and_the_way_on(run, name):
    out = run("second epoch")
    was = read_json(out / "config.json")[name]
    edit(out, **{name: OTHER[name]})
    before = content(out)
    said = refusal("train", "--resume", out)
    assert f"{name} {OTHER[name]}, which was {'none' if was is None else was}" in said
    assert "put that back, or go on with it as it is by --accept-changes" in said
    assert content(out) == before
    assert "put that back" in refusal("evaluate", out)  # its best network is bound as well


def test_every_option_is_bound_or_told(config):
    """The best that one can do to a configuration: another value in each of its fields."""
    for each in fields(Config):
        value = getattr(config, each.name)
        known = each.metadata["known"]
        if known:
            other = next(word for word in known if word != value)
        elif isinstance(value, bool) or value is None:
            other = value is not True
        else:
            other = f"{value}x" if isinstance(value, str) else value / 2 + 0.25
        now = config
        object.__setattr__(now := replace(config), each.name, other)
        matter, free = changes(now, {f.name: getattr(config, f.name) for f in fields(Config)})
        assert [each.name] == [words.split()[0] for words in matter + free]
        assert not free or each.name in ("data_root", "download", "workers", "cpu", "fsdp")


def test_a_changed_configuration_is_taken_on_purpose(run):
    out = run("second epoch")
    edit(out, epochs=4, label_smoothing=0.1)
    assert "epochs 4, which was 3" in refusal("train", "--resume", out)
    resume_run(out, accept_changes=True).close()
    assert evaluate(out)["n"] == 32
    assert [record.epoch for record in resume_run(out)] == [2, 3, 4]  # from now on it is its own
    assert "is for a run that goes on" in refusal("train", "--accept-changes")


def test_a_checkpoint_without_a_configuration_is_taken_on_purpose_only(run):
    """Those of older versions."""
    out = run("second epoch")
    for name in (LAST, BEST):
        tensors, state = load_checkpoint(out / name)
        state.pop("config")
        save_checkpoint(out / name, tensors, state)
    assert "does not say which configuration" in refusal("train", "--resume", out)
    assert evaluate(out)["n"] == 32
    resume_run(out, accept_changes=True).close()
    assert len(list(resume_run(out))) == 2


def test_where_and_how_fast_may_change_and_is_told(run, config, runs, tmp_path):
    out, moved = run("second epoch"), tmp_path / "moved"
    moved.mkdir()
    shutil.copy(config.data.removeprefix("npz:"), moved / "i.npz")
    edit(out, data=f"npz:{moved}/i.npz", data_root="elsewhere", workers=1)
    trainer = resume_run(out)
    told = [note for note in trainer.prepared.notes if note.startswith("config.json now has")]
    assert [note.split()[3] for note in told] == ["data", "data_root", "workers"]
    assert len(list(trainer)) == 2
    assert_same_end(runs["done"], out)


def test_nothing_is_executed_for_a_configuration_that_was_changed(run, tmp_path):
    out, mark = run("second epoch"), tmp_path / "mark"
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n" + NET)
    edit(out, model=f"{tmp_path}/evil.py:net")
    for command in (("train", "--resume"), ("evaluate",)):
        assert "evil.py:net, which was" in refusal(*command, out)
    assert not mark.exists()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_configuration_is_bound_before_there_is_a_checkpoint(config, tmp_path, when):
    trainer = open_run(config, tmp_path / "run")
    trainer.close()
    if when == "after":
        trainer = resume_run(tmp_path / "run")
        trainer.close()
    edit(tmp_path / "run", seed=7)
    assert "seed 7, which was 0" in refusal("train", "--resume", tmp_path / "run")


def test_a_selection_resumes_only_what_it_asks_for(run, config):
    out = run("second epoch")
    open_trial(config, out).close()
    with pytest.raises(ValueError, match="has seed 0, not 5"):
        open_trial(replace(config, seed=5), out)


def test_no_changed_bit_of_a_configuration_goes_unnoticed(run):
    """Refused, or without effect, or told. `make attack` resumes 3,000 of them for real."""
    out = run("second epoch")
    path, kept = out / "config.json", load_checkpoint(out / LAST)[1]["config"]
    good, draws = path.read_bytes(), random.Random(0)
    told = 0
    for _ in range(400):
        changed = bytearray(good)
        changed[draws.randrange(len(good))] ^= 1 << draws.randrange(8)
        path.write_bytes(bytes(changed))
        try:
            now = RunFolder(out).options()
            free = require_same(now, kept, out)
        except ValueError:
            continue
        told += bool(free)
        assert free or now == Config.from_dict(kept)
    assert told < 40


# Stopping, and going on


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_stop_is_seen_with_one_step_per_epoch(config, tmp_path, step):
    options = replace(config, max_steps_per_epoch=1, epochs=5)
    list(fit(options, tmp_path / "whole"))
    out = stop_at(options, tmp_path / "run", step)
    assert len(read_records(out / METRICS)) == step and not (out / "result.json").exists()
    assert len(list(resume_run(out))) == 5 - step
    assert_same_end(tmp_path / "whole", out)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is mapped")
def test_a_resumed_run_does_not_live_in_its_file(run, runs):
    out = run("second epoch")
    trainer = resume_run(out)
    assert LAST not in Path("/proc/self/maps").read_text()
    (out / LAST).write_bytes(b"")  # SIGBUS, were it mapped
    assert len(list(trainer)) == 2
    assert_same_end(runs["done"], out)


def test_space_is_asked_for_before_a_run_goes_on(run, monkeypatch):
    free = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    out = run("second epoch")
    before = content(out)
    assert "1 kB left, and checkpoints need" in refusal("train", "--resume", out)
    assert content(out) == before
    assert list(resume_run(run("done"))) == []  # writes no checkpoint any more


DAMAGE: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "the first line is missing": (lambda lines: lines[1:], "epoch 2 at step 4 where epoch 1"),
    "a line in between is missing": (lambda lines: [lines[0], lines[2]], "where epoch 2 should"),
    "the last line is missing": (lambda lines: lines[:-1], "lacks epoch 3"),
    "all lines are missing": (lambda lines: [], "lacks epoch 1"),
    "a line is doubled": (lambda lines: [lines[0], *lines], "epoch 1 at step 2 where epoch 2"),
    "the last line is doubled": (lambda lines: [*lines, lines[-1]], "where epoch 4 should"),
    "lines have changed places": (lambda lines: lines[::-1], "where epoch 1 should"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_records_that_are_missing_or_doubled_are_noticed(run, what):
    change, words = DAMAGE[what]
    out = run("done")
    lines = (out / METRICS).read_text().splitlines(keepends=True)
    (out / METRICS).write_text("".join(change(lines)))
    before = content(out)
    said = refusal("train", "--resume", out)
    assert f"{out / METRICS} " in said and words in said and "--accept-changes" in said
    assert content(out) == before
    resume_run(out, accept_changes=True).close()


def test_an_older_checkpoint_does_not_drop_later_records(run, runs):
    out = run("done")
    shutil.copy(runs["begun"] / LAST, out / LAST)
    before = content(out)
    assert "has 3 epochs, and the checkpoint is of epoch 0" in refusal("train", "--resume", out)
    assert content(out) == before
