"""Real processes that are killed, stopped and started twice: no run is ever lost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
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
    "--epochs=16",
    "--max-steps-per-epoch=2",
    "--batch-size=8",
    "--frozen=0.3",
    "--recalibrate=1",
    "--ema=0.5",
]
# Where a process stops to be killed: in training, at its n-th gradient; or at the n-th time that it
# wants a file on the disk, all of it written or the last bytes missing. No clock decides.
MOMENTS = [
    ("backward", 1), ("fsync", 1), ("torn", 1), ("torn", 3), ("fsync", 4), ("backward", 3),
    ("torn", 5), ("fsync", 6), ("torn", 7), ("fsync", 8), ("backward", 4), ("torn", 2),
]  # fmt: skip
# Commands of the command line, each in a process of its own; imports are paid once.
SERVER = """
import gc, json, os, sys, time
from proxbit.cli.root import app
import torch._dynamo, proxbit as pb, proxbit.train.display  # imported late otherwise

pb.binarize(torch.nn.Linear(2, 2), only="*")  # so are kernels of shapes, at their first use

gc.freeze()  # each run collects garbage once: let it not look at all that was imported

def stop_at(owner, name, count, marker, torn):
    real = getattr(owner, name)

    def stopping(*args, **kwargs):
        nonlocal count
        count -= 1
        if count == 0:
            if torn and os.path.isfile(f"/proc/self/fd/{args[0]}"):
                os.ftruncate(args[0], max(os.fstat(args[0]).st_size - 3, 0))
            open(marker, "w").close()
            while True:
                time.sleep(3600)  # until the kill
        return real(*args, **kwargs)

    setattr(owner, name, stopping)

while line := sys.stdin.readline():
    command, log, kind, count = json.loads(line)
    pid = os.fork()
    if pid == 0:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1), os.dup2(file, 2)
        if kind == "backward":
            stop_at(torch.Tensor, "backward", count, log + ".stopped", False)
        elif kind:
            stop_at(os, "fsync", count, log + ".stopped", kind == "torn")
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


def start(
    server: subprocess.Popen[str], command: list[str], log: Path, kind: str = "", count: int = 0
) -> int:
    """Begin a command, which stops at the given moment if there is one; its process."""
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps([command, str(log), kind, count]) + "\n")
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


def wait_until_stopped(pid: int, log: Path) -> None:
    """The process is where it was told to stop, or has ended without coming there."""
    marker = Path(f"{log}.stopped")
    while alive(pid) and not marker.exists():
        time.sleep(0.002)
    marker.unlink(missing_ok=True)


def timeless(path: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in record.to_dict().items() if k != "seconds"}
        for record in read_records(path)
    ]


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_nothing(place, server, tmp_path):
    """In training, and while files are half written; the end is the same, bit for bit."""
    begin = ["train", "--model", f"{place}/net.py:net", "--data", f"npz:{place}/i.npz", *OPTIONS]
    whole, out, log = tmp_path / "whole", tmp_path / "out", tmp_path / "log"
    start(server, [*begin, "--out", str(whole)], log)
    assert ended(server) == 0, log.read_text()
    steps = set()
    for kind, count in MOMENTS:
        begun = (out / "config.json").exists()
        command = ["train", "--resume", str(out)] if begun else [*begin, "--out", str(out)]
        pid = start(server, command, log, kind, count)
        wait_until_stopped(pid, log)
        os.kill(pid, signal.SIGKILL)
        assert ended(server) == -signal.SIGKILL, log.read_text()
        steps.add(assert_loadable(out))
    start(server, ["train", "--resume", str(out)], log)
    assert ended(server) == 0, log.read_text()
    assert len(steps) >= 4, "the run made no progress between the kills"
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
