"""What attacks share: a clock, an outcome, a small run, and children that may die."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

NET = """
from torch import nn

def net(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4), nn.Dropout(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, classes),
    )
"""


class Clock:
    """How long an attack may go on."""

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self.seconds, self.end = seconds, time.monotonic() + seconds

    def over(self) -> bool:
        """Whether it is time to stop."""
        return time.monotonic() > self.end


@dataclass
class Outcome:
    """What an attack did, counted in words, and a sentence for each failure."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def make_place(folder: Path) -> tuple[str, str]:
    """A model and images for tiny runs: their names for --model and --data."""
    (folder / "net.py").write_text(NET)
    labels = np.arange(32) % 2
    images = np.random.default_rng(0).integers(0, 256, (32, 8, 8, 3)).astype("u1")
    np.savez(folder / "i.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return f"{folder}/net.py:net", f"npz:{folder}/i.npz"


def fork(work: Callable[[], int], log: Path | None = None) -> int:
    """A child that does some work and ends with its status; what it says goes to ``log``."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 99
    try:
        file = os.open(log or "/dev/null", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1), os.dup2(file, 2)
        status = work()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        os._exit(status)


def measured(work: Callable[[], int], seconds: float) -> tuple[int, float, int]:
    """Status, seconds and peak megabytes of a child; it is ended after so many seconds."""
    began = time.monotonic()

    def limited() -> int:
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
        return work()

    _, status, usage = os.wait4(fork(limited), 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - began, usage.ru_maxrss // 1024
