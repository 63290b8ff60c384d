"""One ``proxbit train`` in its own process: begun or resumed, watched, stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from proxbit.experiments.reproduce.configs import check_alike
from proxbit.train.config import Config
from proxbit.train.fitting import read_result
from proxbit.train.records import Record, read_records
from proxbit.train.run_folder import RunFolder
from proxbit.util.files import write_atomically

MISTAKE, DIVERGED = 2, 4  # of proxbit train
PATIENCE = 60.0  # seconds for a run whose driver was killed to save itself
LOOK = 0.2  # seconds between looks at a run

Look = Callable[[list[Record]], None]


class RunRefused(ValueError):
    """A run that cannot begin as it was asked for."""


class Broken(RuntimeError):
    """A run that began and failed; ``again`` says whether another try may help."""

    def __init__(self, message: str, again: bool) -> None:
        """Keep both."""
        super().__init__(message)
        self.again = again


def train(config: Config, run: Path, look: Look = lambda records: None) -> None:
    """Train as ``config`` says in the folder ``run``, or continue what is there, to the end.

    Raises RunRefused, or Broken after a second failure.
    """
    try:
        _train_once(config, run, look)
    except Broken as error:
        if not error.again:
            raise
        _train_once(config, run, look)


def _train_once(config: Config, run: Path, look: Look) -> None:
    run.parent.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(run)
    if folder.config.is_file():
        check_alike(config, asdict(folder.options()), f"the run in {str(run)!r}")
        if read_result(run) is not None:
            return
        wait_for(folder)
        arguments = ["--resume", str(run)]
    else:
        asked = run.with_name(f"{run.name}.json")
        write_atomically(asked, json.dumps(asdict(config)).encode())
        arguments = ["--config", str(asked), "--out", str(run)]
    status, words = _process(["train", "--quiet", *arguments], folder, look)
    if status == MISTAKE:
        raise RunRefused(words)
    if status:
        raise Broken(words, again=status != DIVERGED)


def wait_for(folder: RunFolder) -> None:
    """Give a process that still trains in a folder time to save itself."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            folder.lock()
        except ValueError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK)
        else:
            folder.close()
            return


def _process(arguments: list[str], folder: RunFolder, look: Look) -> tuple[int, str]:
    """The exit status of a command and, if it failed, what it said last.

    Ctrl-C reaches us alone: we then ask the run once to save itself, and wait for it.
    """
    log = log_of(folder.path)
    child = ["-P", "-m", "proxbit.cli.child"]  # -P: no module of the working folder
    command = [sys.executable, *child, str(os.getpid()), *arguments]
    with log.open("ab") as output:
        began = output.tell()
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            while process.poll() is None:
                look(_so_far(folder))
                time.sleep(LOOK)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    return process.returncode, _last_words(log, began, process.returncode)


def log_of(run: Path) -> Path:
    """The output of a run's processes, in a file next to its folder."""
    return run.with_name(f"{run.name}.log")


def _so_far(folder: RunFolder) -> list[Record]:
    try:
        return read_records(folder.metrics)
    except (ValueError, OSError):  # being replaced at this very moment
        return []


def _last_words(log: Path, began: int, status: int) -> str:
    """The sentence that a failed command ended with; nothing for one that did not fail."""
    if status == 0:
        return ""
    text = log.read_bytes()[began:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line.removeprefix("proxbit: ") for line in lines if line.startswith("proxbit: ")]
    if status < 0:
        return f"the process was ended by signal {-status}; see {log}"
    return (said or lines or [f"the process ended with status {status}"])[-1]
