"""The folder of a selection: the request, and a log of what was done, line by line.

select.json     the request: configuration, minutes, methods
log.jsonl     the pace, every rung, every trial, every pause; only ever appended to
runs/           the run that is going on
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from proxbit.experiments.selection.halving import Pace, Rung
from proxbit.experiments.selection.trials import Trial
from proxbit.train.config import Config
from proxbit.util.files import SoleFolder, write_atomically
from proxbit.util.jsonl import append_line, read_lines
from proxbit.util.schema import read_json, record_from

VERSION = 1
_KINDS: dict[str, type[Any]] = {"pace": Pace, "rung": Rung, "trial": Trial}


@dataclass(frozen=True)
class Request:
    """The request to a selection: every run has this configuration except method and length."""

    config: Config
    minutes: float
    methods: tuple[str, ...]


class SelectionLog(SoleFolder):
    """The folder, open to this process alone."""

    def __init__(self, path: str | Path) -> None:
        """Name the files; nothing is touched yet."""
        super().__init__(path, "selecting in")
        self.request, self.lines = self.path / "select.json", self.path / "log.jsonl"

    def create(self, request: Request) -> None:
        """Begin, or say why nothing can be written."""
        self.refuse_used()
        with self.making():
            values = {"version": VERSION, **asdict(request)}
            write_atomically(self.request, (json.dumps(values, indent=1) + "\n").encode())

    def open(self) -> tuple[Request, list[Any]]:
        """Continue: what was asked, and the records so far."""
        if not self.request.is_file():
            raise ValueError(
                f"{str(self.path)!r} is not the folder of a selection: no select.json in it"
            )
        self.lock()
        with self.closed_if_refused():
            return _read_request(self.request), [_record(*line) for line in read_lines(self.lines)]

    def append(self, kind: str, value: Any) -> None:
        """One more line, on the disk before this returns."""
        append_line(self.lines, {kind: value if kind == "pause" else asdict(value)})

    def run_folder(self, rung: int, place: int, seed: int) -> Path:
        """Where one run keeps its checkpoints while it goes on."""
        return self.path / "runs" / f"rung{rung}-method{place}-seed{seed}"

    def forget_runs(self) -> None:
        """Remove the folder of the run that is over and written down."""
        shutil.rmtree(self.path / "runs", ignore_errors=True)


def _read_request(path: Path) -> Request:
    values = read_json(path)
    given = values.pop("version", None) if isinstance(values, dict) else None
    if given != VERSION:
        raise ValueError(f"{path} is of version {given}, and this proxbit reads {VERSION}")
    config = Config.from_dict(values.get("config"), str(path))  # options may have come since
    return record_from(Request, values | {"config": asdict(config)}, str(path))


def _record(where: str, values: Any) -> Any:
    """The pace, rung, trial or pause (a number of seconds) of one line."""
    kind, value = next(iter(values.items()), ("", None)) if isinstance(values, dict) else ("", None)
    if kind == "pause" and isinstance(value, float):
        return value
    if kind in _KINDS:
        return record_from(_KINDS[kind], value, where)
    raise ValueError(f"{where} is damaged: it holds no pace, rung, trial or pause")
