"""Runs that are killed and stopped at any moment, and resumed: the same end, bit for bit."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
from pathlib import Path
from random import Random

import torch
import torch._dynamo  # imported late otherwise, in every child
from common import Clock, Outcome, fork, make_place

import proxbit.train.display  # noqa: F401
from proxbit.cli.root import app
from proxbit.train.checkpoint import load_checkpoint
from proxbit.train.records import read_records

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
KINDS = (
    ["--epochs=12", "--max-steps-per-epoch=2", "--ema=0.5"],
    ["--epochs=16", "--max-steps-per-epoch=1"],  # a stop must be seen between epochs, too
    ["--epochs=6", "--max-steps-per-epoch=2", "--pretrain=4"],
)
COMMON = ["--batch-size=8", "--frozen=0.3", "--recalibrate=1", "--cpu", "--quiet"]
INTERRUPTED, TRIES = 130, 40


def attack(random: Random, clock: Clock) -> Outcome:
    """One run after another, each beside the same one that nobody stops."""
    torch.set_num_threads(1)
    gc.freeze()
    outcome, number = Outcome(), 0
    while not clock.over():
        with tempfile.TemporaryDirectory() as folder:
            _storm(Path(folder), KINDS[number % len(KINDS)], random, outcome)
        number += 1
    return outcome


def _storm(folder: Path, kind: list[str], random: Random, outcome: Outcome) -> None:
    model, data = make_place(folder)
    begin = ["train", "--model", model, "--data", data, *kind, *COMMON]
    whole, out, log = folder / "whole", folder / "out", folder / "log"
    began = time.monotonic()
    status = _ended(_start([*begin, "--out", str(whole)], log))
    duration = time.monotonic() - began
    tries = 0
    while status == 0 and not (out / "result.json").exists() and tries < TRIES:
        again = (out / "config.json").exists()
        tries += 1
        ours = ["train", "--resume", str(out), "--quiet"] if again else [*begin, "--out", str(out)]
        status = _disturbed(ours, log, random, duration if tries < TRIES else 0, outcome)
    outcome.counts["runs"] += 1
    problem = _difference(whole, out) if status == 0 else f"status {status}: {_last(log)}"
    if problem:
        outcome.failures.append(f"{' '.join(kind)}: {problem}")


def _disturbed(
    command: list[str], log: Path, random: Random, duration: float, outcome: Outcome
) -> int:
    """Start a command and, unless there is no time for it, send a signal; 0 where all is well."""
    pid, number = _start(command, log), random.choice(SIGNALS)
    if duration:
        time.sleep(random.uniform(0, 0.5) * duration)
        os.kill(pid, number)  # even a dead child keeps its number until we wait for it
    status = _ended(pid)
    if status in (-signal.SIGKILL, INTERRUPTED, -signal.SIGTERM, -signal.SIGINT):
        outcome.counts["kills" if status == -signal.SIGKILL else "stops"] += 1
        return 0
    # Ctrl-C before the run listens is an ordinary one.
    early = number == signal.SIGINT and status in (1, 99)
    return 0 if early else status


def _start(command: list[str], log: Path) -> int:
    def work() -> int:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        app(command)
        return 0

    return fork(work, log)


def _ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _difference(one: Path, other: Path) -> str:
    """What is not the same in two folders of runs; nothing where all is."""
    for name in ("last.safetensors", "model.safetensors"):
        first, second = (load_checkpoint(run / name)[0] for run in (one, other))
        if first.keys() != second.keys():
            return f"{name} has other tensors"
        odd = [key for key in first if not torch.equal(first[key], second[key])]
        if odd:
            return f"{name} differs in {odd[0]}"
    hard = [[r.hard for r in read_records(run / "metrics.jsonl")] for run in (one, other)]
    return "" if hard[0] == hard[1] else "the metrics differ"


def _last(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or [""])[-1]
