"""Files of a run: written whole or not at all, refused with one sentence when not ours."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, safe_open, save
from typer.testing import CliRunner

from proxbit.cli.root import app
from proxbit.train import Config, fit, resume_run
from proxbit.train import checkpoint as files
from proxbit.train.checkpoint import load_checkpoint, save_checkpoint, write_atomically
from proxbit.train.records import read_records

pytestmark = pytest.mark.usefixtures("light_garbage")
NET = """
from torch import nn

def net(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes),
    )
"""
TENSORS = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3), "empty": torch.zeros(0, 2)}
STATE = {"step": 3, "names": ["a", "ü"], "half": 0.5}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    place = tmp_path_factory.mktemp("place")
    (place / "net.py").write_text(NET)
    random = np.random.default_rng(0)
    labels, images = np.arange(32) % 2, random.integers(0, 256, (32, 8, 8, 3)).astype("u1")
    np.savez(place / "i.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return Config(
        model=f"{place}/net.py:net", data=f"npz:{place}/i.npz", epochs=2, batch_size=8, frozen=0.25,
        recalibrate=1, ema=0.5, cpu=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended."""
    out = tmp_path_factory.mktemp("runs") / "done"
    list(fit(config, out))
    return out


@pytest.fixture
def run(done: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    out = tmp_path / "run"
    out.mkdir()
    for file in done.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    (out / "result.json").unlink()
    return out


def answer(*arguments: str) -> tuple[int, str]:
    """Exit status and the one line that a command says; a traceback fails the test."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    said = result.stderr.strip()
    assert "\n" not in said and "Traceback" not in said
    return result.exit_code, said


# Round trips


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    save_checkpoint(tmp_path / "c", TENSORS, STATE)
    tensors, state = load_checkpoint(tmp_path / "c")
    assert state == STATE
    assert tensors.keys() == TENSORS.keys()
    assert all(
        torch.equal(tensors[n], t) and tensors[n].dtype == t.dtype for n, t in TENSORS.items()
    )


@given(
    text=st.text(max_size=8),
    number=st.floats(allow_nan=False) | st.integers() | st.none() | st.booleans(),
    kind=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool]),
)
def test_any_plain_value_and_type_of_tensor_comes_back(tmp_path_factory, text, number, kind):
    path = tmp_path_factory.mktemp("c") / "c"
    value = torch.tensor([[0, 1], [1, 1]]).to(kind).t()  # not contiguous
    save_checkpoint(path, {text or "x": value}, {text: [number]})
    tensors, state = load_checkpoint(path)
    assert state == {text: [number]}
    assert tensors[text or "x"].dtype == kind and torch.equal(tensors[text or "x"], value)


# Damage


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "c"
    save_checkpoint(path, TENSORS, STATE)
    return path.read_bytes()


def refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged|not a checkpoint") as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value)


@settings(max_examples=300)
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_seen(tmp_path_factory, good, position, bit):
    changed = bytearray(good)
    changed[int(position * len(good))] ^= 1 << bit
    refused(tmp_path_factory.getbasetemp() / "flipped", bytes(changed))


@settings(max_examples=60)
@given(length=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_seen(tmp_path_factory, good, length):
    refused(tmp_path_factory.getbasetemp() / "short", good[: int(length * len(good))])


@settings(max_examples=60)
@given(content=st.binary(max_size=200))
def test_any_other_file_is_refused(tmp_path_factory, good, content):
    path = tmp_path_factory.getbasetemp() / "other"
    refused(path, content)
    refused(path, good + content + b"!")


def test_a_plain_safetensors_file_and_a_missing_one_are_refused(tmp_path):
    refused(tmp_path / "plain", save(TENSORS))
    with pytest.raises(ValueError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "none")


@pytest.mark.parametrize("name", ["last.safetensors", "model.safetensors"])
def test_the_command_line_refuses_a_damaged_checkpoint(run, name):
    path = run / name
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    command = ("train", "--resume") if name == "last.safetensors" else ("evaluate",)
    status, said = answer(*command, str(run))
    assert status == 2 and str(path) in said and "damaged" in said
    assert path.read_bytes() == bytes(content)


# Well-formed files with another content


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Change state or tensors and make the digest right again, as an attacker would."""
    with safe_open(path, "pt") as file:
        state = json.loads(file.metadata()["state"])
    tensors = load_file(path)
    changed = change(state, tensors)
    save_checkpoint(path, tensors, state if changed is None else changed)  # type: ignore[arg-type]


def _set(*keys: str, to: Any) -> Callable[[Any, Any], None]:
    def change(state: Any, _: Any) -> None:
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = to

    return change


def _drop(*keys: str) -> Callable[[Any, Any], None]:
    def change(state: Any, _: Any) -> None:
        for key in keys[:-1]:
            state = state[key]
        del state[keys[-1]]

    return change


def _without(name: str) -> Callable[[Any, Any], None]:
    def change(_: Any, tensors: Any) -> None:
        del tensors[name]

    return change


QUANTIZER = ("quantizers", "3.binary.weight_quantizer")
HOSTILE: dict[str, Callable[[Any, Any], object]] = {
    "no progress": _drop("progress"),
    "no step": _drop("progress", "step"),
    "another key": _set("progress", "exec", to="rm"),
    "text for a step": _set("progress", "step", to="3"),
    "a share of a step": _set("progress", "step", to=3.5),
    "true for a step": _set("progress", "step", to=True),
    "a step before the first": _set("progress", "step", to=-1),
    "a step after the last": _set("progress", "step", to=10**9),
    "a list of progress": _set("progress", to=[1, 2]),
    "no quantizers": _drop("quantizers"),
    "quantizers as text": _set("quantizers", to="none"),
    "one quantizer less": _drop(*QUANTIZER),
    "one quantizer more": _set("quantizers", "4", to={}),
    "no strength": _drop(*QUANTIZER, "strength"),
    "text for a strength": _set(*QUANTIZER, "strength", to="5"),
    "no number for a strength": _set(*QUANTIZER, "strength", to=float("nan")),
    "a strength below 0": _set(*QUANTIZER, "strength", to=-1.0),
    "no limit for a unit": _set(*QUANTIZER, "unit", to=float("inf")),
    "1 for hard": _set(*QUANTIZER, "hard", to=1),
    "a state that is a list": lambda *_: [],
    "a state that is a number": lambda *_: 3,
    "a weight less": _without("model/3.weight"),
    "a weight more": lambda _, tensors: tensors.update({"model/x": torch.zeros(2)}),
    "a weight of another shape": lambda _, t: t.update({"model/3.weight": torch.zeros(2)}),
    "whole numbers for weights": lambda _, t: t.update(
        {"model/3.weight": t["model/3.weight"].to(torch.int64)}
    ),
    "a moment less": _without("optimizer/0.weight/exp_avg"),
    "a moment more": lambda _, t: t.update({"optimizer/0.weight/x": t["model/0.weight"]}),
    "a moment of nothing": lambda _, t: t.update({"optimizer/9.weight/step": torch.tensor(1.0)}),
    "a moment of another shape": lambda _, t: t.update(
        {"optimizer/0.weight/exp_avg": torch.tensor(0.0)}
    ),
    "an average less": _without("average/0.weight"),
    "signs of another shape": lambda _, t: t.update(
        {"signs/3.weight": torch.zeros(1, dtype=torch.int8)}
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_checkpoint_of_another_content_is_refused(run, what):
    rewrite(run / "last.safetensors", HOSTILE[what])
    kept = (run / "last.safetensors").read_bytes()
    status, said = answer("train", "--resume", str(run))
    assert status == 2 and "last.safetensors" in said
    assert (run / "last.safetensors").read_bytes() == kept


def test_the_same_checkpoint_rewritten_is_not(run):
    """So that the test above refuses for the right reason."""
    rewrite(run / "last.safetensors", lambda *_: None)
    status, said = answer("train", "--resume", str(run))
    assert (status, said) == (0, "")


@pytest.mark.parametrize(
    "change",
    [_drop("quantizers"), _set("quantizers", to=3), _without("3.weight"),
     lambda _, t: t.update({"3.weight": torch.zeros(2)}), lambda *_: []],
)  # fmt: skip
def test_a_network_of_another_content_is_refused(run, change):
    rewrite(run / "model.safetensors", change)
    status, said = answer("evaluate", str(run))
    assert status == 2 and "model.safetensors" in said


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "nul", '{"a": 1e}', "\ud800"])
def test_a_state_that_is_no_json_is_refused(run, text):
    path = run / "last.safetensors"
    tensors = load_file(path)
    content = text.encode("utf-8", "replace").decode()
    metadata = {"format": files.FORMAT, "state": content, "digest": files._digest(tensors, content)}
    path.write_bytes(save(tensors, metadata))
    status, said = answer("train", "--resume", str(run))
    assert status == 2 and str(path) in said


JUNK = ["", "{", "[]", "3", '"x"', "[" * 100_000, "\x00", '{"epochs": "3"}', '{"epoch": 3}', "null"]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl"])
def test_junk_in_any_file_of_a_run_is_one_sentence(run, name, junk):
    (run / name).write_text(junk + "\n")
    commands = [("show",), ("train", "--resume")] if name != "result.json" else [("show",)]
    for command in commands:
        status, said = answer(*command, str(run))
        assert status == 2 and name in said


def test_bytes_that_are_no_text_are_one_sentence(run):
    for name in ("metrics.jsonl", "config.json"):
        (run / name).write_bytes(b"\xff\xfe{}\n")
        status, said = answer("show", str(run))
        assert status == 2 and name in said


def test_a_line_that_a_kill_cut_off_does_not_count(run):
    before = read_records(run / "metrics.jsonl")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "st')
    assert read_records(run / "metrics.jsonl") == before
    assert list(resume_run(run)) == []
    assert read_records(run / "metrics.jsonl") == before
    assert (run / "metrics.jsonl").read_text().endswith("}\n")


# Writes that fail


def fails_at(call: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that fails once, as on a full disk."""
    calls = []

    def fail(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return function(*args, **kwargs)

    return fail


@pytest.mark.parametrize("where", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.open"])
def test_a_write_that_fails_keeps_the_old_file(tmp_path, monkeypatch, where):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    owner, _, name = where.rpartition(".")
    original = getattr(os if owner == "os" else Path, name)
    monkeypatch.setattr(where, fails_at(1, original))
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("call", range(3, 14, 2))
def test_a_disk_that_fills_up_keeps_the_last_checkpoint(config, done, tmp_path, monkeypatch, call):
    """The run says so, and goes on from there when there is room again."""
    out = tmp_path / "run"
    options = ["--config", str(tmp_path / "config.json"), "--out", str(out)]
    (tmp_path / "config.json").write_text(config.to_json())
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fails_at(call, os.fsync))
        status, said = answer("train", *options)
    if "--resume" in said:
        assert status == 1 and "No space left" in said
        assert not list(out.glob(".*.tmp"))
        status, _ = answer("train", "--resume", str(out))
    else:  # before the run had begun: its folder is not one yet
        assert status == 2 and "No space left" in said
        return
    assert status == 0
    for name in ("last.safetensors", "model.safetensors"):
        ours, theirs = load_file(out / name), load_file(done / name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_full_disk_is_found_before_training(config, tmp_path, monkeypatch):
    free = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    (tmp_path / "config.json").write_text(config.to_json())
    out = tmp_path / "deep" / "run"
    status, said = answer("train", "--config", str(tmp_path / "config.json"), "--out", str(out))
    assert status == 2 and "1 kB left" in said and str(out) in said
    assert not out.exists()


def test_a_folder_that_cannot_be_written_is_found_before_training(config, tmp_path):
    (tmp_path / "config.json").write_text(config.to_json())
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / "run"
    status, said = answer("train", "--config", str(tmp_path / "config.json"), "--out", str(out))
    assert status == 2 and str(out) in said and "Not a directory" in said
    assert (tmp_path / "file").read_text() == "mine"


def test_leftovers_of_a_kill_are_swept_up(run):
    for name in (".last.safetensors.123.tmp", ".config.json.9.tmp"):
        (run / name).write_bytes(b"half")
    list(resume_run(run))
    assert not list(run.glob(".*.tmp"))


def test_a_run_that_was_killed_before_it_began_may_begin_again(config, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").touch()
    (out / ".config.json.9.tmp").write_bytes(b"half")
    assert len(list(fit(config, out))) == config.epochs
