"""Real processes that are killed, stopped and started twice: no run is ever lost."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from proxbit.cli.root import app
from proxbit.train.checkpoint import load_checkpoint
from proxbit.train.fitting import resume_run
from proxbit.train.records import read_records

NET = """
from torch import nn

def net(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4), nn.Dropout(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, classes),
    )
"""
# Many short epochs: most of the time something is being written.
OPTIONS = [
    "--epochs=12",
    "--max-steps-per-epoch=2",
    "--batch-size=8",
    "--frozen=0.3",
    "--recalibrate=1",
    "--ema=0.5",
]
SEEDS, PATIENCE = range(20), 15.0  # on a busy machine seconds end before seeds do
# Commands of the command line, each in a process of its own; imports are paid once.
SERVER = """
import gc, json, os, sys
from proxbit.cli.root import app
import torch._dynamo, proxbit as pb, proxbit.train.display  # imported late otherwise

pb.binarize(torch.nn.Linear(2, 2), only="*")  # so are kernels of shapes, at their first use

gc.freeze()  # each run collects garbage once: let it not look at all that was imported

while line := sys.stdin.readline():
    command, log = json.loads(line)
    pid = os.fork()
    if pid == 0:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1), os.dup2(file, 2)
        try:
            app(command)
        except SystemExit as end:
            os._exit(end.code or 0)
        os._exit(99)
    print(pid, flush=True)
    sys.stdin.readline()  # until then even a dead process keeps its number: no other gets the kill
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("place")
    (path / "net.py").write_text(NET)
    generator = np.random.default_rng(0)
    labels, images = np.arange(32) % 2, generator.integers(0, 256, (32, 8, 8, 3)).astype("u1")
    np.savez(path / "i.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return path


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVER], **pipes) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def start(server: subprocess.Popen[str], command: list[str], log: Path) -> int:
    """Begin a command; its process."""
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps([command, str(log)]) + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())


def ended(server: subprocess.Popen[str]) -> int:
    """Wait for the command; its status."""
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write("\n")
    server.stdin.flush()
    return int(server.stdout.readline())


def alive(pid: int) -> bool:
    return ") Z " not in Path(f"/proc/{pid}/stat").read_text()


def wait_until(pid: int, condition: Callable[[], bool]) -> None:
    """Busily, because a file is half written for a millisecond only."""
    end = time.monotonic() + 10
    while time.monotonic() < end and alive(pid) and not condition():
        pass


def half_written(out: Path) -> bool:
    return any(path.suffix == ".tmp" for path in out.iterdir())


def newer(out: Path, than: int) -> bool:
    return written(out) > than


def written(out: Path) -> int:
    """When the last checkpoint was."""
    path = out / "last.safetensors"
    return path.stat().st_mtime_ns if path.exists() else 0


def timeless(path: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in record.to_dict().items() if k != "seconds"}
        for record in read_records(path)
    ]


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_nothing(place, server, tmp_path):
    """Half of the kills come while a file is half written; the end is the same, bit for bit."""
    begin = ["train", "--model", f"{place}/net.py:net", "--data", f"npz:{place}/i.npz", *OPTIONS]
    whole, out, log = tmp_path / "whole", tmp_path / "out", tmp_path / "log"
    start(server, [*begin, "--out", str(whole)], log)
    began = time.monotonic()
    assert ended(server) == 0, log.read_text()
    duration, killed, steps = time.monotonic() - began, 0, set()
    for seed in SEEDS:
        if time.monotonic() - began > PATIENCE:
            break
        moment = random.Random(seed)
        again = ["train", "--resume", str(out)]
        begun = (out / "config.json").exists()
        pid = start(server, again if begun else [*begin, "--out", str(out)], log)
        if seed % 2:
            time.sleep(moment.uniform(0, 0.8) * duration)  # past the start, which is long
        else:
            wait_until(pid, partial(newer, out, written(out)))
            wait_until(pid, partial(half_written, out))
        os.kill(pid, signal.SIGKILL)
        status = ended(server)
        assert status in (0, -signal.SIGKILL), log.read_text()
        killed += status != 0
        steps.add(assert_loadable(out))
    start(server, ["train", "--resume", str(out)], log)
    assert ended(server) == 0, log.read_text()
    assert killed >= 5 and len(steps) >= 3, "the kills came too late to say anything"
    assert "Traceback" not in log.read_text()
    assert_same(whole, out)


def assert_loadable(out: Path) -> int:
    """Whatever is there is whole; the step to continue from."""
    step = 0
    if (out / "last.safetensors").exists():
        step = load_checkpoint(out / "last.safetensors")[1]["progress"]["step"]
    if (out / "model.safetensors").exists():
        load_checkpoint(out / "model.safetensors")
    return step


def assert_same(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "last.safetensors"):
        first, second = load_file(one / name), load_file(other / name)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
    assert timeless(one / "metrics.jsonl") == timeless(other / "metrics.jsonl")
    assert not [path for path in other.iterdir() if path.suffix == ".tmp"]


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(place, tmp_path):
    """And while a run goes on, no other process may write into its folder."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "proxbit", "train", "--model", f"{place}/net.py:net"]
    command += ["--data", f"npz:{place}/i.npz", *OPTIONS, "--epochs", "100000", "--out", str(out)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if "1/100000" in line:
                break
        second = CliRunner().invoke(app, ["train", "--resume", str(out)])
        third = CliRunner().invoke(app, ["train", "--out", str(out), "--data", "fashion"])
        process.send_signal(signal.SIGINT)
        printed, said = process.stdout.read(), process.stderr.read()
        assert process.wait(30) == 130
    assert said == f"stopped and saved: continue with  proxbit train --resume {out}\n"
    assert "\x1b" not in printed
    assert second.exit_code == 2 and "another process is training in" in second.stderr
    assert third.exit_code == 2 and "exists and is not empty" in third.stderr
    step = load_checkpoint(out / "last.safetensors")[1]["progress"]["step"]
    assert step > 0 and not (out / "result.json").exists()
    resumed = resume_run(out)
    assert resumed.progress.step == step
    next(iter(resumed))
    assert resumed.progress.step == step - step % 2 + 2
