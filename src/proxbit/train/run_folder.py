"""The folder of a run: its files, who may write into it, and whether there is room.

config.json         every option, resolved: repeats the run
about.json          versions, commit, device, command
metrics.jsonl       one record per epoch
last.safetensors    everything needed to continue, the configuration included
model.safetensors   the best hard network: an ordinary state_dict
result.json         the final figures, when the run is done
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from proxbit._version import __version__
from proxbit.train.checkpoint import begun, load_checkpoint, nothing_yet, save_checkpoint
from proxbit.train.config import Config, read_config
from proxbit.util.files import SoleFolder, remove_leftovers, write_atomically
from proxbit.util.text import size


class RunFolder(SoleFolder):
    """One folder for one run; a second process cannot write into it at the same time."""

    def __init__(self, path: str | Path) -> None:
        """Name the files; nothing is touched yet."""
        super().__init__(path, "training in")
        self.config = self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.last = self.path / "last.safetensors"
        self.model = self.path / "model.safetensors"
        self.result = self.path / "result.json"

    def options(self) -> Config:
        """The configuration of the run that this folder must hold."""
        if not self.config.is_file():
            raise ValueError(f"{str(self.path)!r} is not the folder of a run: no config.json in it")
        return read_config(self.config)

    def is_left_by_kill(self, path: Path) -> bool:
        """Whether a file was left by a run that was killed before it had a folder."""
        if self.config.exists():
            return False
        if path == self.last:
            return not begun(load_checkpoint(path)[1])
        return path.name == "about.json" or super().is_left_by_kill(path)

    def create(self, config: Config, command: list[str]) -> None:
        """Begin, or say why nothing can be written.

        config.json comes last: a folder that has one has all that a new run writes.
        """
        self.refuse_used()
        circumstances = about(command)
        with self.making():
            self.write("about.json", circumstances)
            save_checkpoint(self.last, {}, nothing_yet(config))
            self.write("config.json", asdict(config))

    def open(self) -> None:
        """Continue, as the only process that writes."""
        self.options()
        self.lock()
        remove_leftovers(self.path)

    def checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The last checkpoint; a run that has lost it does not start over by itself."""
        self.require(self.last, "from which the run goes on")
        return load_checkpoint(self.last)

    def require(self, file: Path, what: str) -> None:
        """Say what is missing, and stop."""
        if not file.is_file():
            raise ValueError(
                f"{file.name}, {what}, is missing in {str(self.path)!r}: put it back, or begin a "
                f"new run with  proxbit train --config {self.config}"
            )

    def require_space(self, needed: int) -> None:
        """Refuse to begin or go on where the checkpoints will not fit."""
        there = next(each for each in (self.path, *self.path.absolute().parents) if each.exists())
        free = shutil.disk_usage(there).free
        if free < needed:
            raise ValueError(
                f"{str(self.path)!r} has {size(free)} left, and checkpoints need {size(needed)}: "
                "free some space, or choose another --out for a new run"
            )

    def write(self, name: str, values: dict[str, Any]) -> None:
        """A small JSON file, whole or not at all."""
        write_atomically(self.path / name, (json.dumps(values, indent=1) + "\n").encode())


def about(command: list[str]) -> dict[str, Any]:
    """The rest of what a result depends on: versions, commit, machine, command."""
    import numpy as np

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    return {
        "proxbit": __version__, "torch": torch.__version__, "numpy": np.__version__,
        "python": platform.python_version(), "platform": platform.platform(), "commit": _commit(),
        "device": device or platform.machine(), "cores": os.cpu_count(),
        "threads": torch.get_num_threads(), "command": command or sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip


def _commit() -> str | None:
    """The commit of the source, where it is a git checkout."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
